// Draws the page; the last file of the script.

function drawPage() {
  startTheme();
  const charts = readPayload();
  if (charts !== null) {
    const view = new TimeWindow(charts);
    const whole = charts.part ?? "the whole run";
    drawTimeCharts(charts, view, whole);
    drawWindowTable(charts, view, whole);
    drawHistograms(charts);
    drawHeatmap(charts, view);
    drawLanes(charts, view);
    if (charts.stacks.stacks.length > 0) drawFlame(charts);
  }
  window.addEventListener("resize", drawAllSoon);
  window.trainprofReady = true;
}

drawPage();

"""Faults of how torch is told to compute."""

from __future__ import annotations

from dataclasses import replace

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, SAMPLERS, Case, Parts, script, whole_batches


def anomaly_detection(draw: Draw) -> Case:
    """Left on from when a NaN was looked for."""
    layers, style = draw.whole(4, 20), draw.one_of(EVERYWHERE)
    definitions = f"""\
def build_deep_model():
    layers = [build_model()[0]]
    for _ in range({layers}):
        layers += [nn.Linear(32, 32), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(32, 1))
"""
    parts = Parts(
        loader=f"DataLoader(samples({150 * 16}), batch_size=16)",
        definitions=definitions,
        model="build_deep_model()",
        epochs=1,
        setup="torch.set_num_threads(1)\ntorch.autograd.set_detect_anomaly(True)",
    )
    planted = f"on, with {layers} layers"
    case = Case("anomaly_detection", planted, style, script(style, parts), "anomaly_detection")
    return replace(case, no_line=True)


def too_many_threads(draw: Draw) -> Case:
    """Several times as many threads as cores."""
    times, style = draw.whole(3, 12), draw.one_of(EVERYWHERE)
    width = draw.one_of((256, 384))
    parts = Parts(
        loader=whole_batches(100, 256),
        data=SAMPLERS,
        imports="import os\n",
        model=f"nn.Sequential(nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, 1))",
        epochs=2,
        setup=f"torch.set_num_threads({times} * os.cpu_count())",
    )
    planted = f"{times} threads for each core"
    case = Case("too_many_threads", planted, style, script(style, parts), "thread_count")
    return replace(case, no_line=True)


def few_threads(draw: Draw) -> Case:
    """One thread, left from another machine, for a model of large layers."""
    width, batch = draw.one_of((1024, 768, 1280)), draw.one_of((256, 512))
    layers = draw.whole(1, 3)
    deep = "".join(f"nn.Linear({width}, {width}), nn.ReLU(), " for _ in range(layers))
    parts = Parts(
        loader=whole_batches(50, batch),
        data=SAMPLERS,
        model=f"nn.Sequential(nn.Linear(64, {width}), nn.ReLU(), {deep}nn.Linear({width}, 1))",
        epochs=2,
    )
    planted, style = f"one thread, layers of {width} numbers", draw.one_of(EVERYWHERE)
    case = Case("few_threads", planted, style, script(style, parts), "thread_count")
    return replace(case, no_line=True)


def double_precision(draw: Draw) -> Case:
    """A model made double, and data to fit it."""
    width, batch = draw.one_of((512, 384, 768)), draw.one_of((128, 256))
    parts = Parts(
        loader=whole_batches(60, batch),
        data=SAMPLERS,
        model=f"nn.Sequential(nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, {width}), "
        f"nn.Tanh(), nn.Linear({width}, 1))",
        epochs=2,
        setup=f"torch.set_default_dtype(torch.float64)  {HERE}",
    )
    style = draw.one_of(EVERYWHERE)
    planted = f"layers of {width} numbers, batches of {batch}"
    return Case("double_precision", planted, style, script(style, parts), "double_precision")


_TEXTS = """\
class Texts(Dataset):
    def __init__(self, count):
        self.lengths = torch.randint({shortest}, {longest} + 1, (count,)).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.randint(1, 500, (self.lengths[index],)), torch.randn(1)


def put_together(samples):{here}
    texts, values = zip(*samples)
    width = {width}
    x = torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in zip(x, texts):
        row[: len(text)] = text
    return x, torch.stack(values)
"""
_READER = """\
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 64, padding_idx=0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(64, 1)

    def forward(self, x):
        return self.last(self.layers(self.words(x)).mean(dim=1))
"""


def reading(shortest: int, longest: int, batch: int, width: str, here: str = "") -> Parts:
    """Returns a model that reads texts.

    Args:
        shortest, longest: How many words they have.
        batch: Texts in one.
        width: Of a batch, as an expression; `texts` are those in it.
        here: Ending of the line where they are put together.
    """
    data = _TEXTS.format(shortest=shortest, longest=longest, width=width, here=here)
    options = f"batch_size={batch}, shuffle=True, collate_fn=put_together"
    return Parts(
        loader=f"DataLoader(Texts({60 * batch}), {options})",
        data=data,
        definitions=_READER,
        model="Reader()",
        epochs=2,
        setup="torch.manual_seed(0)",
    )


def padded_batches(draw: Draw) -> Case:
    """Texts that are padded to one length, which none of them has."""
    longest, batch = draw.one_of((48, 64, 80)), draw.one_of((8, 16))
    width, style = draw.one_of((128, 160, 192)), draw.one_of(EVERYWHERE)
    files = script(style, reading(8, longest, batch, str(width), f"  {HERE}"))
    planted = f"8 to {longest} words padded to {width}, batches of {batch}"
    return Case("padded_batches", planted, style, files, "padded_batches")


TEACHER = """\
TEACHER = nn.Sequential(
    nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, {width}), nn.Tanh(), nn.Linear({width}, 1)
)
"""
_STUDENT = "nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))"
_PROBED = """\
class Probed(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, {width}), nn.Tanh()
        )
        self.head = nn.Linear({width}, 1)

    def forward(self, x):
        return self.head(self.backbone(x))
"""


def taught(width: int, batch: int, asked: str) -> Parts:
    """Returns a small model that learns from a larger one, which `asked` puts questions to."""
    return Parts(
        loader=whole_batches(200, batch),
        data=SAMPLERS,
        definitions=TEACHER.format(width=width),
        model=_STUDENT,
        each_batch=asked,
        epochs=2,
    )


def unused_gradients(draw: Draw) -> Case:
    """A teacher, or a backbone of which the head is trained, that is not frozen."""
    width, batch = draw.one_of((384, 512, 256)), draw.one_of((128, 256))
    style, is_teacher = draw.one_of(EVERYWHERE), draw.one_of((True, False))
    if is_teacher:
        files = script(style, taught(width, batch, f"y = TEACHER(x)  {HERE}"))
    else:
        parts = replace(
            taught(width, batch, ""),
            definitions=_PROBED.format(width=width),
            model="Probed()",
            optimizer="torch.optim.SGD(model.head.parameters(), lr=0.01)",
        )
        called = "model(x), y)"
        files = {
            name: text.replace(called, f"{called}  {HERE}")
            for name, text in script(style, parts).items()
        }
    planted = f"a {'teacher' if is_teacher else 'backbone'} of {width} numbers, not frozen"
    return Case("unused_gradients", planted, style, files, "unused_gradients")


_ADVERSARY = """\
MAKER = nn.Sequential(
    nn.Linear(64, {width}),
    nn.Tanh(),
    nn.Linear({width}, {width}),
    nn.Tanh(),
    nn.Linear({width}, 64),
)
MAKER_OPTIMIZER = torch.optim.SGD(MAKER.parameters(), lr=1e-3)


def train_maker(judge):
    MAKER_OPTIMIZER.zero_grad()
    (1 - judge(MAKER(torch.randn({batch}, 64)))).square().mean(){backward}
    MAKER_OPTIMIZER.step()
"""


def adversary(width: int, batch: int, *, is_apart: bool) -> Parts:
    """Returns a judge that learns beside what it judges, each with an optimizer of its own.

    Args:
        width: Of the maker.
        batch: Its samples.
        is_apart: The pass of each computes what it trains, and nothing else.
    """
    one_by_one = ".backward(inputs=list(MAKER.parameters()))" if is_apart else ".backward()"
    return Parts(
        loader=whole_batches(150, batch),
        data=SAMPLERS,
        definitions=_ADVERSARY.format(width=width, batch=batch, backward=one_by_one),
        model=_STUDENT,
        each_batch="x = MAKER(x).detach()" if is_apart else "x = MAKER(x)",
        each_step="train_maker(model)",
        epochs=2,
    )


def discarded_gradients(draw: Draw) -> Case:
    """A judge's pass of backward goes on into what it judges, for nothing."""
    width, batch = draw.one_of((384, 512, 256)), draw.one_of((128, 256))
    style = draw.one_of(EVERYWHERE)
    files = {
        name: "\n".join(
            f"{line}  {HERE}" if line.strip() == "loss.backward()" else line
            for line in text.split("\n")
        )
        for name, text in script(style, adversary(width, batch, is_apart=False)).items()
    }
    planted = f"a maker of {width} numbers, not detached"
    return Case("discarded_gradients", planted, style, files, "discarded_gradients")


_RECOMMENDER = """\
class Recommender(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = nn.Embedding(rows, 64){here}
        self.out = nn.Linear(64, 1)

    def forward(self, asked):
        return self.out(self.table(asked).mean(1))
"""


def recommender(rows: int, batch: int, asked: int, optimizer: str, here: str = "") -> Parts:
    """Returns a model of a table, of which each sample looks up some rows."""
    return Parts(
        loader=whole_batches(120, batch),
        data=SAMPLERS.replace("randn(count, 64)", f"randint(0, {rows}, (count, {asked}))"),
        definitions=_RECOMMENDER.format(here=here),
        model=f"Recommender({rows})",
        optimizer=f"torch.optim.{optimizer}(model.parameters(), lr=0.01)",
        epochs=2,
    )


def dense_embeddings(draw: Draw) -> Case:
    """A table that is changed as a whole in each step, for the rows of a batch."""
    rows, batch = draw.whole(80_000, 200_000), draw.one_of((64, 256))
    optimizer, style = draw.one_of(("Adam", "SGD", "AdamW")), draw.one_of(EVERYWHERE)
    files = script(style, recommender(rows, batch, 2, optimizer, f"  {HERE}"))
    planted = f"{rows:,} rows changed by {optimizer}, {2 * batch} looked up"
    return Case("dense_embeddings", planted, style, files, "dense_embeddings")

"""Anomaly detection is left on from when a NaN was looked for.

expect: anomaly_detection @ any line
planted: on, with {LAYERS} layers
"""

LAYERS, STYLE = whole(4, 20), one_of(*EVERYWHERE)


# -- definitions
def build_deep_model():
    layers = [build_model()[0]]
    for _ in range(LAYERS):
        layers += [nn.Linear(32, 32), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(32, 1))


# -- setup
torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)

# -- built
loader = DataLoader(samples(2400), batch_size=16)
model = build_deep_model()
epochs = 1

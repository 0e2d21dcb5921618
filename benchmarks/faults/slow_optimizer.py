"""Many small parameters, updated one by one.

expect: slow_optimizer
planted: {OPTIMIZER} on {4 * LAYERS + 4} parameters, {as_ms(COMPUTE_S)} of a step asleep
"""

LAYERS, OPTIMIZER = whole(15, 50), one_of("AdamW", "Adam", "Adagrad")
COMPUTE_S, STYLE = between(0.001, 0.004), one_of(*EVERYWHERE)


# -- definitions
def build_deep_model():
    layers = [build_model()[0], Device(COMPUTE_S)]
    for _ in range(LAYERS):
        layers += [nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 1))


# -- built
loader = DataLoader(samples(2400), batch_size=16)
model = build_deep_model()
optimizer = torch.optim.OPTIMIZER(model.parameters())  # here
epochs = 1

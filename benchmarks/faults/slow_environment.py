"""A policy plays, in evaluation mode, and its environment takes longer than it does.

expect: python_in_loop
planted: {MOVES} moves of {as_ms(MOVE_S)} ahead of {UPDATES} updates
gain: 1 / (1 - SHARE)
"""

COMPUTE_S, SLOWER = between(0.002, 0.004), between(1.5, 4.0)
MOVES, UPDATES = one_of(16, 24), one_of(20, 30)
MOVE_S, STEPS = SLOWER * COMPUTE_S, 10 * UPDATES
PLAYED_S, LEARNED_S = MOVES * (COMPUTE_S + MOVE_S), UPDATES * (COMPUTE_S + STEPPING_S)
SHARE = MOVES * MOVE_S / (PLAYED_S + LEARNED_S)
STYLE = one_of("plain loop", "function")


# -- definitions
class Environment:
    def step(self, action):
        time.sleep(MOVE_S)  # here
        return torch.randn(1, 64)


def play(model, environment):
    model.eval()
    with torch.no_grad():
        observation = torch.randn(1, 64)
        for _ in range(MOVES):
            observation = environment.step(model(observation))
    model.train()


def get_batch():
    return torch.randn(8, 64), torch.randn(8, 1)


# -- each batch
if step % UPDATES == 0:
    play(model, Environment())

# -- built
batch = get_batch()
steps = STEPS
compute_s = COMPUTE_S

"""Many small tensors in a batch, each of them opened by itself when it comes from the worker.

expect: slow_receive
planted: {TENSORS} tensors a batch, {as_ms(COMPUTE_S)} to train on it
"""

TENSORS, COMPUTE_S = whole(80, 400), between(0.004, 0.012)
STYLE = one_of(*WITH_GUARD)
BOXES = TENSORS // 4


# -- data
class Boxes(Dataset):
    def __len__(self):
        return 360

    def __getitem__(self, index):
        return [torch.zeros(4) for _ in range(BOXES)], torch.randn(64), torch.randn(1)


def keep(samples):  # here
    boxes = [box for boxes, _, _ in samples for box in boxes]
    return (torch.stack([x for _, x, _ in samples]), boxes), torch.stack([y for _, _, y in samples])


# -- each batch
x, boxes = x

# -- built
loader = DataLoader(  # here
    Boxes(), batch_size=4, num_workers=1, collate_fn=keep, persistent_workers=True
)
compute_s = COMPUTE_S
epochs = 1

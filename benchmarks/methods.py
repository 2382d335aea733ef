"""Time each method at one client, relative to FedAvg, and count what it sends.

The client has random images in the size of a CIFAR client. All methods take turns within a run, so
that a change in the machine's load meets them all; the table has medians of ratios.
"""

import argparse
import statistics
import time

import torch

from pfedfda.machine import one_thread
from pfedfda.methods import Client, Samples, Task, all_methods
from pfedfda.models import ModelConfig
from pfedfda.seeding import torch_generator


def make_client(task: Task, images: int) -> Client:
    generator = torch_generator("benchmark")
    shape = (images, *task.input_shape)
    return Client(
        client_id=0,
        round=2,
        task=task,
        samples=Samples(
            torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator),
            torch.randint(0, task.num_classes, (images,), generator=generator),
        ),
        state={},
        model=task.build_model(),
        generator=generator,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=122, help="training images of the client")
    parser.add_argument("--classes", type=int, default=10, help="classes of the federation")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each method")
    options = parser.parse_args()
    task = Task(ModelConfig("cifar-cnn"), (32, 32, 3), options.classes, num_clients=100)
    methods = {name: kind() for name, kind in all_methods().items()}
    seconds: dict[str, dict[str, list[float]]] = {
        name: {"train": [], "personalize": []} for name in methods
    }
    floats: dict[str, tuple[int, int]] = {}
    states = {name: method.init(task) for name, method in methods.items()}
    clients = {name: make_client(task, options.images) for name in methods}
    with one_thread():
        for _ in range(options.repeats + 1):
            for name, method in methods.items():
                message = method.message(states[name], 0)
                start = time.perf_counter()
                update = method.train(clients[name], message)
                middle = time.perf_counter()
                method.personalize(clients[name], message)
                seconds[name]["train"].append(middle - start)
                seconds[name]["personalize"].append(time.perf_counter() - middle)
                down, up = (sum(t.numel() for t in m.values()) for m in (message, update.tensors))
                floats[name] = down, up
    base = seconds["fedavg"]["train"][1:]  # the first turn warms up
    print("| method | floats down | floats up | training | personalising |")
    print("|---|---|---|---|---|")
    for name, measured in seconds.items():
        train, personalize = (
            statistics.median(t / b for t, b in zip(measured[part][1:], base, strict=True))
            for part in ("train", "personalize")
        )
        down, up = floats[name]
        print(f"| {name} | {down:,} | {up:,} | {train:.2f} | {personalize:.2f} |")
    print(f"\nFedAvg's training: {1000 * statistics.median(base):.0f} ms")


if __name__ == "__main__":
    main()

"""Programs that end, start and hide in odd ways; `python odd.py CASE`, alone or as a rank of torchrun."""

import os
import signal
import subprocess
import sys
import time


def ranks(ending: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        if ending == "sleeps" and step == 2 and dist.get_rank() == 1:
            time.sleep(200)
        loss = torch.nn.functional.cross_entropy(model(torch.ones(4, 3)), torch.tensor([0, 1, 0, 1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if ending == "os_exit":
        os._exit(0)
    if ending == "signal" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "exception" and dist.get_rank() == 1:
        raise RuntimeError("the loss is negative")
    dist.destroy_process_group()


def no_model() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def alone() -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    ranks("well")


def two_models() -> None:
    """A generator and a discriminator with an optimizer each, as in a GAN."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    made = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, size)) for size in (3, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in made]
    for _ in range(3):
        for number, optimizer in enumerate(optimizers):
            for item in optimizers:
                item.zero_grad()
            hidden = made[0](torch.ones(4, 3))
            if number == 1:
                hidden = hidden.detach()
            torch.nn.functional.cross_entropy(made[1](hidden), torch.tensor([0, 1, 0, 1])).backward()
            optimizer.step()
    dist.destroy_process_group()


def main(case: str) -> None:
    if case == "echo":
        print("out", flush=True)
        print("err", file=sys.stderr, flush=True)
        print(os.environ.get("PYTHONPATH", ""), os.getcwd(), sys.stdin.readline().strip(), flush=True)
    elif case == "code":
        sys.exit(int(sys.argv[2]))
    elif case == "torch_only":
        import torch  # noqa: F401
    elif case == "isolated":
        sys.exit(subprocess.call([sys.executable, "-I", __file__, "alone"]))
    elif case in {"no_model", "alone", "two_models"}:
        {"no_model": no_model, "alone": alone, "two_models": two_models}[case]()
    else:
        ranks(case)


if __name__ == "__main__":
    main(sys.argv[1])

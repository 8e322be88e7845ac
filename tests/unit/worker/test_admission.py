"""Admission: which run starts on which devices, which waits and why, and which is refused with the numbers."""

from trainer.contract.placement import Ask, Offer
from worker.admission import Demand, Refuse, Start, Supply, Wait, admit, resource_of


def demand(device: str = "auto", ranks: int = 2, *, share_gpu: bool = False) -> Demand:
    return Demand(run_id=1, ask=Ask(device=device, ranks=ranks, share_gpu=share_gpu))


def test_auto_needs_a_gpu_per_rank() -> None:
    assert admit(demand(), Supply(offer=Offer(gpus=(0, 1)))) == Start(device="cuda", backend="nccl", gpus=(0, 1))
    assert admit(demand(), Supply(offer=Offer(gpus=(0,)))) == Start(device="cpu", backend="gloo")
    assert admit(demand(), Supply(offer=Offer(gpus=()))) == Start(device="cpu", backend="gloo")
    assert isinstance(admit(demand(), Supply(offer=Offer(gpus=None))), Wait)


def test_cpu_waits_for_nobody_looking() -> None:
    assert admit(demand("cpu"), Supply(offer=Offer(gpus=None))) == Start(device="cpu", backend="gloo")


def test_cuda_is_refused_with_numbers() -> None:
    decision = admit(demand("cuda", 4), Supply(offer=Offer(gpus=(0,))))
    assert isinstance(decision, Refuse)
    assert "Device cuda needs 4 GPUs for 4 ranks and 1 GPU is visible." in decision.why
    assert admit(demand("cuda", 4), Supply(offer=Offer(gpus=(0, 1, 2, 3)))) == Start(
        device="cuda", backend="nccl", gpus=(0, 1, 2, 3)
    )


def test_cuda_waits_for_better_worker() -> None:
    decision = admit(demand("cuda"), Supply(offer=Offer(gpus=()), others=[Offer(gpus=None), Offer(gpus=(0, 1))]))
    assert isinstance(decision, Wait)
    assert isinstance(admit(demand("cuda"), Supply(offer=Offer(gpus=()), others=[Offer(gpus=(0,))])), Refuse)


def test_shared_gpu_runs_over_gloo() -> None:
    decision = admit(demand("cuda", 2, share_gpu=True), Supply(offer=Offer(gpus=(0,))))
    assert decision == Start(device="cuda", backend="gloo", gpus=(0,))
    assert isinstance(admit(demand("cuda", 2, share_gpu=True), Supply(offer=Offer(gpus=()))), Refuse)


def test_busy_gpu_waits_with_why() -> None:
    supply = Supply(offer=Offer(gpus=(0, 1, 2)), busy={1: "process 4711"}, held={0: 12})
    decision = admit(demand("cuda"), supply)
    assert decision == Wait("1 of 3 GPUs are free, 2 are needed; in use: GPU 0 by run 12; GPU 1 by process 4711")
    assert admit(demand("cuda"), Supply(offer=Offer(gpus=(0, 1, 2)), busy={1: "x"})) == Start(
        device="cuda", backend="nccl", gpus=(0, 2)
    )


def test_cpu_runs_are_counted() -> None:
    waits = admit(demand("cpu"), Supply(cpu_runs=[7], max_cpu_runs=1))
    assert isinstance(waits, Wait)
    assert "run 7" in waits.why
    assert admit(demand("cpu"), Supply(cpu_runs=[7], max_cpu_runs=2)) == Start(device="cpu", backend="gloo")


def test_queues_by_device_are_apart() -> None:
    supply = Supply(offer=Offer(gpus=(0, 1)), held={0: 3, 1: 3}, cpu_runs=[9])
    for device, resource in (("cuda", "cuda"), ("auto", "cuda"), ("cpu", "cpu")):
        asked = demand(device)
        assert resource_of(admit(asked, supply), asked, supply) == resource
    few = Supply(offer=Offer(gpus=(0,)), cpu_runs=[9])
    assert resource_of(admit(demand(), few), demand(), few) == "cpu"


def test_demand_reads_parameters() -> None:
    assert Demand.of(3, {"device": "cuda", "world_size": 4, "share_gpu": True, "seed": 1}) == Demand(
        run_id=3, ask=Ask(device="cuda", ranks=4, share_gpu=True)
    )


def test_scheduler_takes_any_number_of_runs_up_to_the_limit() -> None:
    slurm = Offer(scheduler="slurm")
    ask = Ask(device="cpu", ranks=4, nodes=2)
    assert admit(Demand(run_id=1, ask=ask), Supply(offer=slurm, cpu_runs=[5], max_jobs=2, jobs=1)) == Start(
        device="cpu", backend="gloo"
    )
    full = admit(Demand(run_id=1, ask=ask), Supply(offer=slurm, max_jobs=2, jobs=2))
    assert isinstance(full, Wait)
    assert "2 of 2 jobs (DDP_AUDIT_SLURM_MAX_JOBS)" in full.why
    gpus = Ask(device="cuda", ranks=4, nodes=2, gpus_per_node=2)
    assert admit(Demand(run_id=1, ask=gpus), Supply(offer=slurm)) == Start(device="cuda", backend="nccl", gpus=(0, 1))


def test_silent_scheduler_is_waited_for() -> None:
    offer = Offer(scheduler="slurm", problem="Slurm does not answer")
    assert admit(demand("cuda", 64), Supply(offer=offer)) == Wait("Slurm does not answer")

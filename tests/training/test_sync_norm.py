"""Two processes that share their batch norms must do what one does with the whole batch."""

import copy
import pickle
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lrnets import update_bn
from lrnets.training.sync_norm import SyncNorm, synced_norms

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SECONDS = 60  # after which processes that wait for each other are ended
STEPS = 2
PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}

# Shape of the whole batch, how many of it the first process has, arguments of the norm.
CASES = {
    "2d": ((10, 3), 5, {}),
    "2d, unequal": ((10, 3), 3, {}),
    "3d": ((6, 3, 4), 2, {}),
    "4d": ((6, 3, 4, 5), 3, {}),
    "4d, unequal": ((6, 3, 4, 5), 5, {"eps": 0.1, "momentum": 0.3}),
    "4d, channels last": ((6, 3, 4, 5), 2, {}),
    "5d": ((4, 3, 2, 3, 2), 3, {}),
    "5d, channels last": ((4, 3, 2, 3, 2), 2, {}),
    "one value": ((7, 3), 1, {}),
    "no value": ((7, 3, 2, 2), 0, {}),
    "without weights": ((6, 3), 2, {"affine": False}),
    "without running statistics": ((6, 3, 2), 2, {"track_running_stats": False}),
    "cumulative average": ((6, 3, 2, 2), 4, {"momentum": None}),
}


def batches(case: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and the gradients of the outputs, for some steps; each row and channel has its own mean and spread."""
    shape = CASES[case][0]
    torch.manual_seed(1)
    found = []
    for _ in range(STEPS):
        rows = torch.arange(shape[0]).view(-1, *[1] * (len(shape) - 1)).double()
        x = torch.randn(shape, dtype=torch.float64) * (1 + rows) + 3 * rows
        if "channels last" in case:
            x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
        found.append((x, torch.randn_like(x)))
    return found


def train(norm: nn.Module, case: str, rows: slice) -> dict[str, object]:
    """Some steps on these rows of each batch: outputs, gradients, state."""
    norm.double()
    with torch.no_grad():
        for number, parameter in enumerate(norm.parameters()):
            parameter.copy_(torch.tensor([0.5, 2.0, -1.0]) + number)
    found: dict[str, object] = {"outputs": [], "dx": [], "channels last": True}
    for x, dy in batches(case):
        x = x[rows].detach().requires_grad_()
        y = norm(x)
        y.backward(dy[rows])
        found["outputs"].append(y.detach())
        found["dx"].append(x.grad)
        found["channels last"] &= y.stride() == x.stride()
    found["dw"] = [parameter.grad for parameter in norm.parameters()]
    found["state"] = dict(norm.state_dict())
    return found


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 3), nn.BatchNorm1d(3)
    ).double()


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(8, 2, 5, 5, dtype=torch.float64) + torch.arange(8).view(8, 1, 1, 1), torch.arange(8) % 3


def descend(call: nn.Module, model: nn.Module, rows: slice) -> None:
    """Three steps of training."""
    x, y = pictures()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(call(x[rows]), y[rows]).backward()
        optimizer.step()


def message(call, *args: object) -> str:
    """Of the ValueError."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the caller looks)
        call(*args)
    return str(caught.value)


def one_of_two(rank: int, folder: str) -> None:
    """Everything that needs a second process, in one go: starting them takes longer than all of it."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS / 2)
    )
    try:
        found: dict[str, object] = {}
        for case, (_, first, arguments) in CASES.items():
            rows = slice(None, first) if rank == 0 else slice(first, None)
            found[case] = train(SyncNorm(3, **arguments), case, rows)

        model = network()
        with synced_norms(model):
            half = slice(4 * rank, 4 * rank + 4)
            descend(nn.parallel.DistributedDataParallel(model), model, half)
            found["updated copy"] = update_bn(copy.deepcopy(model), [pictures()]).state_dict()
            if rank == 0:
                copy.deepcopy(model).train()(pictures()[0])  # would wait for ever if it waited for the other one
        found["parallel training"] = model.state_dict()
        assert SyncNorm not in {type(module) for module in model.modules()}

        far = SyncNorm(3)
        far(batches("2d")[0][0][5 * rank : 5 * rank + 5].float() + 10_000)
        found["far from zero"] = far.state_dict()
        coarse = SyncNorm(3)
        y = coarse(batches("2d")[0][0][5 * rank : 5 * rank + 5].bfloat16().requires_grad_())
        y.sum().backward()
        found["bfloat16"] = {"dtype": str(y.dtype), **coarse.state_dict()}

        alone = SyncNorm(3)
        alone.process_group = dist.new_subgroups(group_size=1)[0]
        found["group of one"] = train(alone, "2d", slice(None))
        found["copies keep the group"] = copy.deepcopy(alone).process_group is alone.process_group
        found["eval"] = SyncNorm(3).eval()(torch.full((1, 3), float(rank)))
        found["too few"] = message(SyncNorm(3), torch.zeros(1 - rank, 3))
        found["elsewhere"] = message(SyncNorm(3, device="meta"), torch.zeros(4, 3, device="meta"))
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("two")
    context = torch.multiprocessing.spawn(one_of_two, (str(folder),), nprocs=2, join=False)
    try:
        end = time.monotonic() + SECONDS
        while not context.join(timeout=1):
            assert time.monotonic() < end, f"two processes have not finished after {SECONDS} s"
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def close(actual: object, expected: object, **tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, **(tolerance or EXACT))


@pytest.mark.parametrize("case", CASES)
def test_two_parts_are_normalised_as_one_batch(found, case):
    shape, _, arguments = CASES[case]
    whole = train(PLAIN[len(shape)](3, **arguments), case, slice(None))
    first, second = (part[case] for part in found)
    for name in ("outputs", "dx"):
        close([torch.cat(parts) for parts in zip(first[name], second[name])], whole[name])
    close([a + b for a, b in zip(first["dw"], second["dw"])], whole["dw"])
    assert len(whole["dw"]) == (2 if arguments.get("affine", True) else 0)
    assert first["channels last"]
    assert second["channels last"]
    close(first["state"], whole["state"])
    close(first["state"], second["state"], rtol=0, atol=0)


def test_parallel_training_is_training_on_the_whole_batch(found):
    model = network()
    descend(model, model, slice(None))
    for part in found:
        close(dict(part["parallel training"]), dict(model.state_dict()))


def test_a_copy_is_plain_and_takes_its_statistics_alone(found):
    for part in found:
        model = network()
        model.load_state_dict(part["parallel training"])
        close(dict(part["updated copy"]), dict(update_bn(model, [pictures()]).state_dict()))


def test_the_variance_does_not_cancel_far_from_zero(found):
    x = batches("2d")[0][0].float() + 10_000
    close(found[0]["far from zero"]["running_var"].double(), 0.9 + 0.1 * x.double().var(0), rtol=1e-4, atol=0)


def test_half_precision_inputs_have_float_statistics(found):
    x = batches("2d")[0][0].bfloat16()
    plain = nn.BatchNorm1d(3)
    plain(x.float())
    assert found[0]["bfloat16"].pop("dtype") == "torch.bfloat16"
    close(dict(found[0]["bfloat16"]), dict(plain.state_dict()), rtol=1e-5, atol=1e-5)


def test_a_group_of_one_is_plain_batch_norm(found):
    plain = train(nn.BatchNorm1d(3), "2d", slice(None))
    for part in found:
        assert part["copies keep the group"]
        close(part["group of one"], plain)


def test_eval_does_not_look_at_other_processes(found):
    for rank, part in enumerate(found):
        close(part["eval"], torch.full((1, 3), rank / (1 + 1e-5) ** 0.5), rtol=1e-5, atol=0)


def test_one_value_in_all_processes_is_an_error_in_each(found):
    for part in found:
        assert "all processes together have 1;" in part["too few"]


def test_other_devices_are_left_to_torch(found):
    assert "SyncBatchNorm expected input tensor to be on GPU" in found[0]["elsewhere"]


def test_torch_gets_all_it_needs_on_other_devices(monkeypatch):
    """There is no GPU to try it on: a device without data plays one, and torch's kernel is replaced."""
    calls = []
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "meta")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(nn.modules.batchnorm.sync_batch_norm, "apply", lambda *args: calls.append(args) or args[0])
    norm, x = SyncNorm(3, device="meta"), torch.zeros(4, 3, device="meta")
    assert norm(x) is x
    assert all(a is b for a, b in zip(calls[0][1:5], (norm.weight, norm.bias, norm.running_mean, norm.running_var)))


# ---- in one process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_one_process_is_plain_batch_norm(case):
    shape, _, arguments = CASES[case]
    plain = train(PLAIN[len(shape)](3, **arguments), case, slice(None))
    close(train(SyncNorm(3, **arguments), case, slice(None)), plain, rtol=0, atol=0)


def test_update_bn_knows_it():
    norms = [nn.BatchNorm2d(2), SyncNorm(2)]
    for norm in norms:
        update_bn(nn.Sequential(norm), [pictures()[0].float()])
    close(*[dict(norm.state_dict()) for norm in norms], rtol=0, atol=0)
    assert norms[1].num_batches_tracked == 1


def test_norms_are_swapped_and_come_back():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm2d(2)), nn.BatchNorm3d(2), nn.Linear(2, 2))
    modules, parameters, names = list(model.modules()), list(model.parameters()), list(model.state_dict())
    types = [type(module) for module in modules]
    with synced_norms(model) as synced:
        assert synced is model
        assert [type(module) for module in model.modules()].count(SyncNorm) == 3
        assert all(a is b for a, b in zip(model.parameters(), parameters))
        assert list(model.state_dict()) == names
        with synced_norms(model):
            pass
        assert type(model[0]) is SyncNorm
    assert [type(module) for module in modules] == types
    assert all(a is b for a, b in zip(model.modules(), modules))
    assert not any("stands_in_for" in vars(module) for module in modules)


def test_norms_come_back_after_an_error():
    model = nn.Sequential(nn.BatchNorm1d(2))
    with pytest.raises(KeyboardInterrupt), synced_norms(model):
        raise KeyboardInterrupt
    assert type(model[0]) is nn.BatchNorm1d


def test_results_of_training_stay():
    model = nn.Sequential(nn.BatchNorm1d(2))
    other = nn.Sequential(nn.BatchNorm1d(2)).double()
    with torch.no_grad():
        other[0].weight.fill_(7)
    with synced_norms(model):
        model.to(torch.float64)
        model.load_state_dict(other.state_dict(), assign=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.tensor([[0.0, 1.0], [2.0, 5.0]], dtype=torch.float64)).sum().backward()
        optimizer.step()
        model.eval()
    close(model[0].running_mean, torch.tensor([0.1, 0.3], dtype=torch.float64))
    close(model[0].bias.detach(), torch.tensor([-2.0, -2.0], dtype=torch.float64))
    close(model[0].weight.detach(), torch.full((2,), 7.0, dtype=torch.float64))
    assert not model[0].training


def test_a_norm_at_two_places_and_a_norm_alone():
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(norm, nn.ReLU(), norm)
    with synced_norms(model):
        assert model[0] is model[2]
        assert type(norm) is SyncNorm
    assert model[0] is model[2] is norm
    assert type(norm) is nn.BatchNorm1d
    with synced_norms(norm):
        assert type(norm) is SyncNorm
    assert type(norm) is nn.BatchNorm1d


def test_hooks_and_checks_of_the_input_stay():
    norm, calls = nn.BatchNorm2d(2), []
    norm.register_forward_hook(lambda *_: calls.append(1))
    with synced_norms(norm):
        norm(torch.zeros(2, 2, 1, 1))
        with pytest.raises(ValueError, match="expected 4D input"):
            norm(torch.zeros(2, 2))
    assert calls == [1]


def test_subclasses_are_left_alone():
    class OwnNorm(nn.BatchNorm1d):
        pass

    model = nn.Sequential(OwnNorm(2), nn.SyncBatchNorm(2), nn.InstanceNorm1d(2))
    with synced_norms(model):
        assert [type(module) for module in model] == [OwnNorm, nn.SyncBatchNorm, nn.InstanceNorm1d]


def test_copies_of_swapped_norms_are_plain():
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(norm, norm)
    with synced_norms(model):
        twin = copy.deepcopy(model)
        carried = pickle.loads(pickle.dumps(model))
        assert type(norm) is SyncNorm
    assert twin[0] is twin[1] is not norm
    assert type(twin[0]) is nn.BatchNorm1d
    assert vars(twin[0]).keys() == vars(norm).keys()
    assert twin[0].weight is not norm.weight
    assert type(carried[0]) is SyncNorm  # by pickle a model goes to the processes that train it
    close(dict(twin.state_dict()), dict(model.state_dict()))


def test_copies_of_other_sync_norms_are_sync_norms():
    norm: _BatchNorm = SyncNorm(2)
    twin = copy.deepcopy(norm)
    assert type(twin) is SyncNorm
    assert twin.weight is not norm.weight
    close(dict(twin.state_dict()), dict(norm.state_dict()))

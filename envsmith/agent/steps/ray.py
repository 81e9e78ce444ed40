"""Ray Train: data parallelism in a worker group of actors, one for each rank, that a ``TorchTrainer`` starts."""

from __future__ import annotations

import os
import secrets
from typing import Any

from envsmith.agent.processes import loopback
from envsmith.agent.steps.launch import RankJob
from envsmith.agent.steps.stage import Stage, Trained

# Nothing is reported over the network, and no process is started ahead of need. The deadline of the step is ours, so
# those of Ray for what a busy machine starts slowly are longer.
_ENV = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_register_timeout_seconds": "600", "RAY_agent_register_timeout_ms": "600000",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
}  # fmt: skip
# They lead to a cluster of the user's.
_OF_A_CLUSTER = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK")
_OBJECT_STORE = 100 << 20
# What Ray sends to its workers by value: they have the agent's text in a file, and not as a package.
_LOOP = """
def loop(config):
    space = {"__name__": "agent"}
    with open(config["agent"], "rb") as file:
        exec(compile(file.read(), "agent.py", "exec"), space)
    from envsmith.agent.launched import run_as_rank
    from envsmith.agent.steps.ray import context

    code = run_as_rank(config["job"], context().get_world_rank())
    if code:
        raise RuntimeError(f"the rank ended with code {code}")
"""


def launch(launch: RankJob) -> None:
    """Start a Ray of this machine alone and train in it. Ends when every worker has."""
    # Without a token of its own, Ray writes one into the user's home.
    os.environ.update(_ENV, RAY_AUTH_TOKEN=secrets.token_hex(32))
    for name in _OF_A_CLUSTER:
        os.environ.pop(name, None)
    import ray
    from ray.train.torch import TorchConfig, TorchTrainer

    train = _home()
    devices = launch.job["devices"] or []
    worker = {"CPU": 1.0, **({"GPU": len(set(devices)) / launch.ranks} if devices else {})}
    # The trainer of Ray Train's first version takes a processor beside those of the workers. A worker that no processor
    # is left for waits for ever.
    ray.init(
        address="local", _node_ip_address=loopback(), num_cpus=launch.ranks + 1, num_gpus=len(set(devices)),
        include_dashboard=False, object_store_memory=_OBJECT_STORE, _temp_dir=os.path.join(launch.directory, "ray"),
    )  # fmt: skip
    trainer = TorchTrainer(
        _by_value(_LOOP, "loop"),
        train_loop_config={"agent": launch.agent, "job": launch.job_file},
        torch_config=TorchConfig(backend=launch.job["backend"], timeout_s=int(launch.job["timeouts"]["group"])),
        scaling_config=train.ScalingConfig(
            num_workers=launch.ranks, use_gpu=bool(devices), resources_per_worker=worker
        ),
        run_config=train.RunConfig(name="smoke", storage_path=os.path.join(launch.directory, "results")),
    )
    trainer.fit()
    ray.shutdown()


def _home() -> Any:
    """Return the module that has Ray Train's settings: before 2.7 it was ray.air."""
    from ray import air, train

    return train if hasattr(train, "get_context") else air


def context() -> Any:
    """Return what a worker asks for its rank, inside of a training loop."""
    home = _home()
    if hasattr(home, "get_context"):
        return home.get_context()
    from ray.air import session

    return session


def _by_value(text: str, name: str) -> Any:
    """Return a function that Ray's pickle takes along whole, as it does those of a script."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(text, space)  # noqa: S102
    return space[name]


def step_ddp(s: Stage) -> Trained:
    """Train with what ``prepare_model`` makes of a model, and report as a training loop does."""
    s.ends_group = False
    s.enter_import("ray.train.torch")
    import ray
    from ray.train.torch import prepare_model

    s.enter("prepare_model")
    model = prepare_model(s.model())
    losses = s.train(model, lambda loss: loss.backward(), s.stepper(s.optimizer(model)))
    s.enter("ray.train.report")
    group = context()
    # A session reports by itself, a context does not.
    (group if hasattr(group, "report") else _home()).report({"loss": losses[-1]})
    facts = {"version": ray.__version__, "workers": group.get_world_size(), "kind": type(model).__name__}
    return Trained(losses=losses, reference=s.reference(), facts=facts)


STEPS = {"ray-ddp": step_ddp}
LAUNCHERS = {"ray": launch}

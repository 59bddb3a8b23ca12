"""A finished run written by hand; without torch, so that a process that stands for a training is quick."""

import json
from pathlib import Path

import yaml


def finish(folder: Path, recipe: str, error: float, seconds: float = 60.0) -> None:
    """All that a finished run leaves behind and a table looks at, except for networks; `recipe` is YAML."""
    settings = yaml.safe_load(recipe)
    discrete = settings["discrete_stage"] is not None
    test = {"float": 0.4} if discrete else {"float": error}
    results = {"seconds": {"float": 0 if discrete else seconds, "stochastic": seconds if discrete else 0}}
    if settings["method"] == "lr":
        test |= {"mode": error + 0.1, "chosen": error}
        results["test_error_of_draws"] = [error, error + 0.2]
    elif discrete:
        test["mode"] = error
    results |= {"test_error": test, "valid_error": {name: value + 1 for name, value in test.items()}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(recipe)
    (folder / "environment.json").write_text(json.dumps({"commit": "abc"}))
    (folder / "float.safetensors").touch()
    (folder / "results.json").write_text(json.dumps(results))

"""A model by its name on the Hub: found in the local cache, or said how to get there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.workload.job.workload_section import Training
from fabrictwin.workload.model.huggingface_cache import config_of

MODEL = Path(__file__).parents[2] / "examples" / "models" / "llama-3-8b.json"
NAME = "meta-llama/Meta-Llama-3-8B"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two snapshots, of which main is the second."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--meta-llama--Meta-Llama-3-8B"
    for commit in ("aaaaaa", "bbbbbb"):
        (folder / "snapshots" / commit).mkdir(parents=True)
        shutil.copy(MODEL, folder / "snapshots" / commit / "config.json")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("bbbbbb\n")
    return folder


def training(model: str, **more: object) -> Training:
    """Return a training section that names a model."""
    return Training.model_validate(
        {"model": model, "micro_batches": 1, "sequence": 8192, "precision": "bf16", **more}
    )


def test_the_revision_of_main_is_read_from_the_cache(cached, tmp_path):
    assert config_of(NAME, tmp_path) == cached / "snapshots" / "bbbbbb" / "config.json"
    (cached / "refs" / "main").write_text("../../../etc\n")
    assert config_of(NAME, tmp_path) == cached / "snapshots" / "aaaaaa" / "config.json"
    model = training(NAME).read_model(tmp_path)
    assert model.name == "Meta-Llama-3-8B"


def test_a_file_of_that_path_comes_first(cached, tmp_path):
    (tmp_path / "meta-llama").mkdir()
    shutil.copy(MODEL, tmp_path / NAME)
    assert config_of(NAME, tmp_path) == tmp_path / NAME


@pytest.mark.parametrize("variable", ["HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_the_cache_lies_where_the_variables_say(cached, tmp_path, monkeypatch, variable):
    monkeypatch.delenv("HF_HUB_CACHE")
    for other in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(other, raising=False)
    below = {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub", "HOME": ".cache/huggingface/hub"}[variable]
    place = tmp_path / variable / below
    place.parent.mkdir(parents=True)
    shutil.move(tmp_path / "hub", place)
    monkeypatch.setenv(variable, str(tmp_path / variable))
    assert config_of(NAME, tmp_path).is_file()


def test_a_name_that_is_nowhere_says_how_to_get_it(cached, tmp_path):
    with pytest.raises(ConfigError, match=r"`hf download org/none config\.json`") as refused:
        training("org/none").read_model(tmp_path)
    assert refused.value.key == "workload.training.model"


def test_what_is_no_name_of_the_hub_is_a_file_that_is_missing(cached, tmp_path):
    for name in ("models/none.json", "../up/there", "none", "a/b/c"):
        assert config_of(name, tmp_path) == tmp_path / name


def test_lengths_are_written_as_they_are_spoken_of():
    assert training("m", sequence="8k").sequence == 8192
    assert training("m", sequence="128K").sequence == 131_072
    for wrong in ("8kk", "k", "8 k", "8M", 0, -1, True, 8.5):
        with pytest.raises(ValueError, match="sequence"):
            training("m", sequence=wrong)

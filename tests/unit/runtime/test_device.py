import pytest
import torch

from coterie.errors import ConfigError
from coterie.runtime.device import SMALL_MODEL_PARAMETERS, choose_device, choose_threads


def test_a_gpu_that_is_not_there_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"run\.device=cuda.*run\.device=cpu"):
        choose_device("cuda")
    assert choose_device("auto") == torch.device("cpu")


def test_a_gpu_number_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="only 2 GPUs"):
        choose_device("cuda:2")
    assert choose_device("auto").type == "cuda"


def test_a_word_that_is_no_device_is_an_error():
    with pytest.raises(ConfigError, match="not a device"):
        choose_device("fast")


def test_small_models_take_one_thread_and_the_setting_wins():
    assert choose_threads(0, SMALL_MODEL_PARAMETERS - 1) == 1
    assert choose_threads(0, SMALL_MODEL_PARAMETERS) >= 1
    assert choose_threads(5, 1) == 5

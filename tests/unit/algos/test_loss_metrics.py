import torch

from coterie.algos.loss_metrics import maxima, means, minima
from coterie.core.metrics import merge, values


def test_means_merge_by_their_number_of_entries():
    parts = [means({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([True])}), means({"a": torch.tensor([6.0])})]
    assert values(merge(parts)) == {"a": 3.0, "b": 1.0}


def test_an_empty_tensor_has_no_value_and_no_weight():
    assert values(means({"a": torch.zeros(0)})) == {}
    assert means({}) == maxima({}) == minima({"a": torch.zeros(0)}) == {}


def test_extremes():
    data = {"a": torch.tensor([1.0, -2.0, 0.5], requires_grad=True), "b": torch.zeros(0)}
    assert values(maxima(data)) == {"a": 1.0}
    assert values(minima(data)) == {"a": -2.0}


def test_sums_are_double():
    many = torch.full((1000,), 0.1)
    assert abs(values(means({"a": many}))["a"] - float(torch.tensor(0.1))) < 1e-12

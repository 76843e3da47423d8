"""How much a model's next token hangs on the outputs of its matrices: where rounding errors show.

The KL divergence that small errors e of an output bring is e^2 / 2 times the mean square of the gradient there of the
log probability of a token that the model itself draws (Fisher information).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from transformers import PreTrainedModel

from reader_edge_export.calibration import Calibration, OutputGradients, matrices_of
from reader_edge_export.sources.module import check_finite

# A tenth of what calibration takes, gradients included; the order of matrices hardly changes with more.
_MAX_TOKEN_PARAMETERS = 125_000_000_000
_MIN_TOKENS = 250
_LENGTH = 128  # of each text: its logits and their gradients are held at once


def max_sensitivity_tokens(num_parameters: int) -> int:
    """How many tokens a model of this size is asked for, at most."""
    return max(_MIN_TOKENS, _MAX_TOKEN_PARAMETERS // num_parameters)


def measure_sensitivity(model: PreTrainedModel, sequences: Sequence[list[int]], calibration: Calibration) -> None:
    """Add to a calibration the gradients of all matrices, on the beginnings of texts.

    The embedding (V, E) is among them: a lookup is its product with a row of one.
    """
    generator = torch.Generator().manual_seed(0)
    left = max_sensitivity_tokens(model.num_parameters())
    with ExitStack() as stack:
        embedding = _embedding(model).weight.detach().numpy()
        stack.enter_context(_gradients_of_rows_alone(model, calibration.gradients_for(embedding)))
        for matrix, module in matrices_of(model):
            hook = module.register_forward_hook(_counting(calibration.gradients_for(matrix)))
            stack.callback(hook.remove)
        for token_ids in sequences:
            part = token_ids[: min(_LENGTH, left)]
            left -= len(part)
            if part:
                _backward(model, part, generator)


def _backward(model: PreTrainedModel, token_ids: list[int], generator: torch.Generator) -> None:
    """Gradients of the log probability of a token drawn after each of a text's."""
    logits = model(torch.tensor([token_ids]), use_cache=False).logits
    check_finite(logits)
    gradient = logits.detach()[0].softmax(dim=-1)
    drawn = torch.multinomial(gradient, 1, generator=generator)
    gradient.scatter_add_(1, drawn, torch.full(drawn.shape, -1.0))
    logits.backward(gradient[None])


def _counting(gradients: OutputGradients) -> Callable[..., None]:
    def count(_module: torch.nn.Module, _inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: gradients.add(gradient.flatten(end_dim=-2)))

    return count


@contextmanager
def _gradients_of_rows_alone(model: PreTrainedModel, gradients: OutputGradients) -> Iterator[None]:
    """Gradients of what a model computes, from its embeddings on, and of none of its weights; those of rows that are
    looked up are counted."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    embedding = _embedding(model)
    hook = embedding.register_forward_hook(_counting_rows(gradients, embedding.weight))
    model.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        hook.remove()
        for parameter in learning:
            parameter.requires_grad_(True)


def _embedding(model: PreTrainedModel) -> torch.nn.Embedding:
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    return embedding


def _counting_rows(gradients: OutputGradients, weight: torch.Tensor) -> Callable[..., torch.Tensor]:
    def count(_module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        rows = output.detach().requires_grad_()
        scale = rows.detach().norm() / weight[inputs[0]].norm()  # Gemma 3 multiplies what it has looked up
        rows.register_hook(lambda gradient: gradients.add(gradient.flatten(end_dim=-2) * scale))
        return rows

    return count

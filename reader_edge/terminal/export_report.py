"""How an export and the figures of its checks are worded for a terminal."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GLOSSARY_PAGE = "docs/reference/glossary.md"  # where each of these words is explained; a wheel has it beside its code
WORDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "tree_logit_error": ("logits unlike the source's", lambda value: f"by {value:.2g} at most"),
    "logit_scale": ("largest logit", lambda value: f"{value:.3g}"),
    "tree_rows_equal": ("drafted like decoded", lambda value: f"{100 * value:.0f} % of the logit rows, bit for bit"),
    "tree_decoding_spread": ("drafted against decoded", lambda value: f"logits differ by {value:.2g} at most"),
    "greedy_tokens": ("greedy tokens compared", lambda value: f"{value:.0f}, with the source's"),
    "greedy_near_ties": ("undecided among them", lambda value: f"{value:.0f}, where the source's best two are as good"),
    "mean_kl_nats": ("KL divergence, mean", lambda value: f"{value:.2g} nats a token"),
    "p99_kl_nats": ("KL divergence, 99th percentile", lambda value: f"{value:.2g} nats"),
    "top1_agreement": ("top-1 agreement", lambda value: f"{100 * value:.1f} % of the tokens"),
    "held_out_tokens": ("measured on", lambda value: f"{value:.0f} held-out tokens"),
    "speculator_error": (
        "speculator unlike its module",
        lambda value: f"by {value:.2g} of the largest number",
    ),
    "speculator_agreement": ("speculator's best like its module's", lambda value: f"{100 * value:.1f} % of the nodes"),
    "speculator_target_agreement": (
        "speculator's best like the model's",
        lambda value: f"{100 * value:.1f} % of the tokens of a held-out text",
    ),
    "image_kl_nats": ("KL divergence behind an image", lambda value: f"{value:.2g} nats a token"),
    "chats_compared": ("conversations compared", lambda value: f"{value:.0f}, with transformers' own rendering"),
    "chats_suited": ("adapted to the template", lambda value: f"{value:.0f} conversations"),
    "chats_different": ("unlike transformers", lambda value: f"{value:.0f} conversations"),
    "source_weight_bits": ("measured against", lambda value: f"the source's own {value:.0f}-bit weights, in fp32"),
}


def glossary() -> Path:
    """The page that explains the words: of the wheel, or of the checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "glossary.md"
    return inside if inside.is_file() else package.parent / GLOSSARY_PAGE


def check_pairs(checks: Mapping[str, float]) -> list[tuple[str, str]]:
    """Names and values for a table; figures without words of their own as they are called."""
    pairs = []
    for name, value in checks.items():
        words, shown = WORDS.get(name, (name.replace("_", " "), lambda value: f"{value:.4g}"))
        pairs.append((words, shown(value)))
    return pairs


def kept_pairs(kept_types: Mapping[str, int], other_types: Mapping[str, int] | None = None) -> list[tuple[str, str]]:
    """Names and values for a table: numbers of matrices by their types, those that stayed as they are and others."""
    if not kept_types:
        return []
    shown = f"kept as in the file: {_counted(kept_types)}"
    return [("matrices", f"{shown}; as int8: {_counted(other_types)}" if other_types else shown)]


def _counted(types: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in types.items())


def sampling_pairs(sampling: Mapping[str, float], others: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Names and values for a table: how tokens are chosen where nobody says, and what else is recommended."""
    words = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in sampling.items())
    drawn = words if sampling.get("temperature") else ", ".join(["greedy", *([words] if words else [])])
    ignored = [("not done here", f"{', '.join(others)}, which the maker recommends too")] if others else []
    return [("sampling", f"{drawn}, as the model's maker recommends" if sampling else "greedy"), *ignored]


def adapter_pairs(adapter: tuple[str, int] | None) -> list[tuple[str, str]]:
    """Names and values for a table: the adapter that is in the weights."""
    if adapter is None:
        return []
    name, num_merged = adapter
    merged = f"merged into {num_merged} matrices" if num_merged else "which changes no number of the model"
    return [("adapter", f"{name}, {merged}")]


def left_out_pairs(modules: Sequence[str]) -> list[tuple[str, str]]:
    """Names and values for a table: what of a model of images and texts is not in the package."""
    return [("text only, without", ", ".join(modules))] if modules else []


def end_pairs(ends: Sequence[str]) -> list[tuple[str, str]]:
    """Names and values for a table: at which tokens answers end."""
    return [("answers end at", ", ".join(repr(end)[1:-1] for end in ends) or "their limit of tokens alone")]


def chat_pairs(adapted: Sequence[str], different: Sequence[str], repaired: Sequence[str]) -> list[tuple[str, str]]:
    """Names and values for a table: conversations that are not rendered as transformers does, and what that means."""
    noted = [
        (
            "adapted to the template",
            adapted,
            "nothing to do: the template would drop a part, so it gets the conversation in another form",
        ),
        ("unlike transformers", different, "not on purpose: look at such prompts before you rely on their answers"),
        ("refused by transformers", repaired, "nothing to do: they are rendered here"),
    ]
    return [(words, f"{'; '.join(names)} ({meaning})") for words, names, meaning in noted if names]

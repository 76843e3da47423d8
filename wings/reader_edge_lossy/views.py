"""Two views of a prompt, mixed (after RAPID, arXiv 2502.20330): all of it, and the passages that bear on its end.

There the retrieved view drafts, and what replaces a rejected draft follows neither distribution. Here both views are
scored in one pass and mixed at every token, so that a text is what the mixture says, whatever is drafted.
"""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Annotated

from reader_edge_lossy.deviation import DeviationMeter
from reader_edge_lossy.views_decoder import LEAST_CONTEXT, ViewsDecoder, ViewsRule
from reader_edge_lossy.views_target import ViewsTarget
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.pipelined_decoder import PipelinedDecoder
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.rule_config import RuleConfig
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH
from reader_edge_runtime.untrusted.config_checks import Range, check


@dataclass(frozen=True, slots=True)
class Views(RuleConfig):
    """Logits of the whole prompt and of what is retrieved of it, mixed at every token of the answer.

    context: tokens of the retrieved view at most, the prompt's end and the passages most like it. weight: of that view;
    0 is exact, 1 leaves the whole prompt out. Greedy or sampled.
    """

    is_greedy = False

    context: Annotated[int, Range(LEAST_CONTEXT, 1 << 28)] = 256
    weight: Annotated[float, Range(0, 1)] = 0.5

    def __post_init__(self) -> None:
        check(self)

    def check(self, config: GenerationConfig) -> None:
        if config.wants_prompt_logprobs:
            raise ConfigError(
                "Log-probabilities of a prompt are those of one text, and views mix two: leave prompt_logprobs out, or "
                "use an engine without the rule."
            )

    def rule(self, ends: Collection[int], usual: WarmupAnswers | None) -> ViewsRule:
        return ViewsRule(DeviationMeter("views", asdict(self), usual))

    def decoder(self, made: Decoder, on_calibration: Callable[[int, int], None] | None) -> Decoder:
        manifest = made.target.manifest
        if manifest.has_states or isinstance(made, PipelinedDecoder) or not made.cache.has_all_rows:
            raise ConfigError("Views take a model of attention alone, in one box: choose another rule for this one.")
        target, config, permission = ViewsTarget(made.target, self.weight), made.config, made.permission
        planner = Planner(MAX_WIDTH if permission.is_on else 1)
        if permission.is_on and config.is_calibrated:
            planner.take(load_or_measure(target, config.threads, 1, on_progress=on_calibration))
        return ViewsDecoder(target, made.drafter, config, planner, made.near_tie_margin, permission, self.context)

"""The composition root: package, target, probe, pass times, drafter and decoder are put together here alone."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from reader_edge_runtime.config import DraftConfig, EngineConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.draft_permission import TRIAL, draft_permission
from reader_edge_runtime.decoding.pipelined_decoder import PipelinedDecoder
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.planning.two_pass_planner import TwoPassPlanner
from reader_edge_runtime.decoding.prefix_cache import PrefixCache
from reader_edge_runtime.decoding.prefix_files import PrefixFiles
from reader_edge_runtime.decoding.verification import near_tie_margin
from reader_edge_runtime.drafting.draft_sources import DraftSources, FilePath
from reader_edge_runtime.drafting.drafter import Drafter, NoDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.datastore.datastore import open_datastores
from reader_edge_runtime.drafting.sources.draft_model import DraftModel
from reader_edge_runtime.drafting.sources.draft_model_source import DraftModelSource
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.drafting.speculators.speculator_cost import PASS_NODES
from reader_edge_runtime.drafting.speculators.speculator_source import SpeculatorSource
from reader_edge_runtime.errors import DraftModelError, ProviderError
from reader_edge_runtime.execution.pipeline.open_pipeline import serve_stage
from reader_edge_runtime.execution.pipeline.pipeline_target import PipelineTarget
from reader_edge_runtime.execution.providers import check_is_whole, open_speculator, open_target, open_vision
from reader_edge_runtime.images.image_encoder import ImageEncoder
from reader_edge_runtime.images.prompt_reader import PromptReader
from reader_edge_runtime.measuring.cost_cache import load_or_measure, machine_key
from reader_edge_runtime.measuring.pass_cost import MAX_WIDTH, PassCost
from reader_edge_runtime.measuring.width_cache import load_or_settle
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.package_parts import SPECULATOR_AGREEMENT
from reader_edge_runtime.package.signature import check_signed
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.tokenizer import Tokenizer

_PREFIX_VERSION = 1  # of what a prefix cache keeps

Progress = Callable[[int, int], None]  # gets what is done, and how much there is in all


def assemble(
    package: ModelPackage,
    config: EngineConfig,
    draft: DraftConfig,
    sources: DraftSources,
    drafter: Drafter | None,
    on_calibration: Progress | None,
) -> tuple[Tokenizer, Decoder, WidthReport | None]:
    """What an engine is made of beside its package, which was checked, and what the width probe found, if it ran.

    Arguments and errors: see `Engine.load`.
    """
    check_is_whole(package)  # first, as only the last stage has a tokenizer
    tokenizer = Tokenizer.open(package, config.is_text_literal)
    target, report = settled_target(package, config, on_calibration)
    if not draft_permission(config, package.manifest.attention, report).is_on:
        decoder = make_decoder(target, NoDrafter(), config, report=report)
        return tokenizer, keeping_prefixes(decoder, package, config), report
    fingerprint, vocab_size = tokenizer.fingerprint(), package.manifest.vocab_size
    opened = open_datastores(sources.datastores, fingerprint, vocab_size) if sources.datastores else []
    if drafter is not None:  # which draws on none of these
        sources = replace(sources, has_speculator=False)
    further = open_sources(replace(sources, workspace=None), package, tokenizer, target, config)
    file = None
    if drafter is None and sources.history is not None:
        file = HistoryFile(Path(sources.history), bytes.fromhex(fingerprint), draft.max_history_tokens, vocab_size)
        file.check()
    costs = [load_or_measure(target, config.threads, 1, on_progress=on_calibration)] if config.is_calibrated else []
    alone = [each for each in further if isinstance(each, SpeculatorSource) and not _pays_off(each, costs)]
    further = [each for each in further if each not in alone]
    if drafter is None:  # not before the measuring: kernels and files take time and memory while they are read
        further = [*_workspace_sources(sources, tokenizer), *further]
        table, warmup_answers = SuccessorTable.of_package(package, fingerprint), WarmupAnswers.of_package(package)
        drafter = RetrievalDrafter(draft, further, opened, file, table, warmup_answers, [each.name for each in alone])
    decoder = make_decoder(target, drafter, config, costs, report)
    return tokenizer, keeping_prefixes(decoder, package, config), report


def keeping_prefixes(decoder: Decoder, package: ModelPackage, config: EngineConfig) -> Decoder:
    """A decoder whose texts outlive the process, where the config names a folder for them.

    Raises PrefixError for a folder that cannot be one, ConfigError where the model's texts cannot be kept.
    """
    if config.prefix_cache is not None:
        facts = package.fingerprint() + machine_key(decoder.target, config.threads, _PREFIX_VERSION).encode()
        files = PrefixFiles(Path(config.prefix_cache), config.prefix_bytes)
        prefixes = PrefixCache(files, hashlib.sha256(facts).digest(), decoder.cache)
        decoder.slots.prefixes = prefixes
        decoder.drafter.recall_from(prefixes.learned, decoder.target.manifest.vocab_size)
    return decoder


def prompt_reader(package: ModelPackage, tokenizer: Tokenizer, target: Target, config: EngineConfig) -> PromptReader:
    """What reads prompts for a package's model, and images where it sees them."""
    part, max_context = package.manifest.images, package.manifest.max_context
    if part is None:
        return PromptReader(tokenizer, max_context, None)
    part = replace(part, rules=part.rules.within(config.max_image_tokens))
    return PromptReader(tokenizer, max_context, ImageEncoder(part, lambda: open_vision(package, target, config)))


def open_sources(
    given: DraftSources, package: ModelPackage, tokenizer: Tokenizer, target: Target, config: EngineConfig
) -> list[DraftSource]:
    """Workspace, speculator, draft model and the caller's own, as sources of drafts; each raises its errors."""
    sources = _workspace_sources(given, tokenizer)  # first, as the costly ones are called where others know little
    if given.has_speculator and package.manifest.speculator is not None:
        sources += _speculator_sources(package, target, config)
    if given.draft_model is not None:
        sources.append(open_draft_model_source(given, package, tokenizer, config))
    return [*sources, *given.extra]


def _workspace_sources(given: DraftSources, tokenizer: Tokenizer) -> list[DraftSource]:
    """The files of a folder that is given, which are read in the background from now on. Raises ConfigError."""
    if given.workspace is None:
        return []
    from reader_edge_runtime.drafting.sources.workspace.watcher import follow

    return [follow(given.workspace, tokenizer)]


def _pays_off(source: SpeculatorSource, costs: Sequence[PassCost]) -> bool:
    """Whether a speculator is worth its states here; where nothing was measured, it is tried."""
    return all(source.pays_off(float(cost.pass_seconds(cost.pasts[0])[PASS_NODES])) for cost in costs)


def _speculator_sources(package: ModelPackage, target: Target, config: EngineConfig) -> list[SpeculatorSource]:
    """The trained speculator of a package that has one; none where its first pass fails. Raises ProviderError."""
    manifest, speculator = package.manifest, open_speculator(package, target, config)
    agreement = manifest.checks.get(SPECULATOR_AGREEMENT)
    try:
        return [SpeculatorSource(speculator, manifest.state_ids, manifest.vocab_size, config.max_batch, agreement)]
    except ProviderError as error:
        warnings.warn(f"The speculator is not called: {error}", stacklevel=2)
        return []


def open_draft_model_source(
    given: DraftSources, package: ModelPackage, tokenizer: Tokenizer, config: EngineConfig
) -> DraftModelSource:
    """A smaller model that is given, which must have the package's tokenizer, as a source of its drafts.

    Raises DraftModelError, PackageError, TokenizerError or ProviderError for what cannot.
    """
    assert given.draft_model is not None
    path = given.draft_model
    drafting = open_package(path, signature_key=config.signature_key)
    if drafting.fingerprint() == package.fingerprint():
        raise DraftModelError(f"'{path}' is the very model that it would draft for: give a smaller one.")
    if Tokenizer.open(drafting).fingerprint() != tokenizer.fingerprint():
        raise DraftModelError(
            f"'{path}' has another tokenizer than '{package.folder}': give a model of the same family to draft."
        )
    if drafting.manifest.has_states:
        raise DraftModelError(
            f"'{path}' has recurrent layers, whose states cannot be taken back from guesses: draft with a model of "
            "attention alone."
        )
    model = DraftModel(open_target(drafting, config), config.max_batch)
    return DraftModelSource(model, package.manifest.vocab_size, given.draft_context)


def open_package(
    path: FilePath, on_progress: Progress | None = None, signature_key: FilePath | None = None
) -> ModelPackage:
    """A package whose files are what its manifest says, and what the owner of a key has signed, if one is given.

    on_progress: gets bytes checked. Raises PackageError, and UserFileError for what is no key.
    """
    package = ModelPackage.open(path)
    check_signed(package, signature_key)
    package.check_files(on_progress)
    return package


def serve_package_stage(
    path: FilePath, address: str, key: Path | None, config: EngineConfig, on_message: Callable[[str], None]
) -> None:
    """Serve a stage of a model to the process that runs its last one, until interrupted.

    key: the file that all boxes of the pipeline have; None takes the pipeline.key beside the stage, or without one
    serves loopback alone. on_message: gets lines of what happens. Raises PackageError, ConfigError, ProviderError or
    InstallationError.
    """
    serve_stage(open_package(path, signature_key=config.signature_key), address, key, config, on_message)


def settled_target(
    package: ModelPackage, config: EngineConfig, on_calibration: Progress | None = None
) -> tuple[Target, WidthReport | None]:
    """A package's model on the provider that a config asks for, and what the width probe found of it, if it ran."""
    target = open_target(package, config)
    if config.is_probed or config.is_near_tie_guarded:
        return load_or_settle(target, config.threads, on_calibration)
    return target, None


def make_decoder(
    target: Target,
    drafter: Drafter,
    config: EngineConfig,
    costs: Sequence[PassCost] = (),
    report: WidthReport | None = None,
    planner: Planner | None = None,
) -> Decoder:
    """A decoder that knows measured pass times, each of its batch size, and what the probe found.

    planner: one of the caller's own, who decides otherwise who drafts and how wide passes are.
    """
    permission = draft_permission(config, target.manifest.attention, report)
    if planner is None and isinstance(target, PipelineTarget) and permission.is_on:
        planner = TwoPassPlanner(target)
    elif planner is None:  # no rows are held back for trees that never come
        planner = Planner(MAX_WIDTH if permission.is_on else 1)
    settings = drafter, config, planner, _margin(config, report), permission
    if isinstance(target, PipelineTarget) and not config.max_kv_bytes:  # which one cache has
        decoder: Decoder = PipelinedDecoder(target, *settings)
    else:
        decoder = Decoder(target, *settings)
    for cost in costs:
        decoder.planner.take(cost)
    return decoder


def make_trial_decoder(
    target: Target, drafter: Drafter, config: EngineConfig, planner: Planner, report: WidthReport | None = None
) -> Decoder:
    """A decoder that drafts whatever the probe found, to show what drafts would change: for proofs and measurements.

    No engine takes one. With the near-tie guard it drafts what an engine would.
    """
    permission = draft_permission(config, target.manifest.attention, report)
    trial = replace(permission, is_trial=True) if permission.is_on else TRIAL
    return Decoder(target, drafter, config, planner, _margin(config, report), trial)


def _margin(config: EngineConfig, report: WidthReport | None) -> float:
    """Below which choices are near ties; 0 for none."""
    is_guarded = report is not None and config.is_near_tie_guarded and not report.is_invariant
    return near_tie_margin(report) if report is not None and is_guarded else 0.0

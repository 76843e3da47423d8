"""What a proof found, as a file that travels with a package, and how a sample of it is compared again elsewhere.

Anybody can write such a file. So it holds a few answers by their tokens, which any machine can decode again, plainly
and drafted; and inside a signed package it is its signer's word.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

import reader_edge
from reader_edge.verify.arrivals import all_at_once, decode
from reader_edge.verify.drafters import RandomWidths
from reader_edge.verify.logit_comparer import LogitComparer, PlainAnswer
from reader_edge.verify.plain_answers import PlainAnswers
from reader_edge.verify.report import coverage
from reader_edge.verify.result import Counts, ProofReport
from reader_edge_runtime import DraftConfig, Engine, GenerationConfig, SamplingConfig
from reader_edge_runtime.assembly import make_trial_decoder
from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import UserFileError
from reader_edge_runtime.images.prompt_reader import ReadPrompt
from reader_edge_runtime.machine.processor import num_threads, processor_name
from reader_edge_runtime.package.manifest import EXACT_ATTENTIONS, MAX_VOCAB
from reader_edge_runtime.text.image_parts import holds_images
from reader_edge_runtime.untrusted.untrusted_json import Sha256, Text, converted, read_json

_SAMPLED, _MOST_TOKENS, _MOST_PROMPT = 4, 256, 4096
_ROUNDS = 2  # the second drafts from the answers of the first
_MAX_BYTES = 1 << 20
_REMEDY = "have it written again (`reader-edge verify MODEL --certificate FILE`)"

_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Ids = tuple[Annotated[int, Meta(ge=0, lt=MAX_VOCAB)], ...]


class Machine(Struct):
    """What bits depend on besides the package. kernels: versions and checksums of what computes."""

    processor: Text
    provider: Text
    instructions: Text
    kernels: Annotated[tuple[Text, ...], Meta(max_length=256)]
    threads: _Count


class SampleAnswer(Struct):
    """A plain greedy answer. bits: SHA-256 over the logit rows that its tokens were chosen from."""

    prompt_token_ids: Annotated[_Ids, Meta(min_length=1, max_length=_MOST_PROMPT)]
    token_ids: Annotated[_Ids, Meta(min_length=1, max_length=_MOST_TOKENS)]
    bits: Sha256


class Certificate(Struct):
    """package: SHA-256 over the checksums of all files that answers depend on."""

    format: Literal["reader-edge certificate"]
    format_version: Literal[1]
    package: Sha256
    source_name: Text
    source_fingerprint: Text
    reader_edge: Text
    machine: Machine
    attention: Text
    precision: Text
    max_tokens: _Count
    prompts: _Count
    settings_covered: _Count
    settings_covered_in_part: _Count
    settings_not_covered: _Count
    tokens_compared: _Count
    divergences: _Count
    logit_rows: _Count
    logit_rows_equal: _Count
    is_promise_kept: bool
    sample: Annotated[tuple[SampleAnswer, ...], Meta(min_length=1, max_length=_SAMPLED)]


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """What decoding the sample again found. counts: drafted answers beside plain ones, all made here.

    answers_equal, bits_equal: plain answers that are those of the certificate. machine: this one. attention: of the
    package.
    """

    certificate: Certificate
    attention: str
    machine: Machine
    counts: Counts
    answers_equal: int
    bits_equal: int

    @property
    def is_kept(self) -> bool:
        """Whether the proof is one, and nothing differs here that may not; bits may on another machine."""
        certificate, num = self.certificate, len(self.certificate.sample)
        is_as_certified = self.answers_equal == num and (self.bits_equal == num or self.is_elsewhere)
        is_proof = certificate.is_promise_kept and certificate.divergences == 0
        return is_proof and self.is_drafting_exact and is_as_certified

    @property
    def is_drafting_exact(self) -> bool:
        """Whether drafted answers are the plain ones here, to the bit where the package promises that."""
        are_bits_equal = self.counts.logit_rows_equal == self.counts.logit_rows
        return self.counts.divergences == 0 and (are_bits_equal or self.attention not in EXACT_ATTENTIONS)

    @property
    def is_elsewhere(self) -> bool:
        """Whether this machine is another one than the certificate's, as far as bits depend on it."""
        return self.machine != self.certificate.machine


def write_certificate(path: Path, engine: Engine, report: ProofReport, max_tokens: int) -> None:
    """Write what a proof found, with a sample of its prompts that is decoded once more. Raises OSError."""
    texts = [question.prompt for question in report.questions if not holds_images(question.prompt)]
    prompts = sorted((tuple(engine.encode_prompt(each)[-_MOST_PROMPT:]) for each in texts), key=len)
    length = min(max_tokens, _MOST_TOKENS)
    answers, _ = _compared(engine, prompts[:: -(-len(prompts) // _SAMPLED)], length)
    whole, part, none = coverage(report)
    manifest, counts = engine.package.manifest, report.counts
    certificate = Certificate(
        format="reader-edge certificate",
        format_version=1,
        package=engine.package.fingerprint().hex(),
        source_name=manifest.source_name,
        source_fingerprint=manifest.source_fingerprint,
        reader_edge=reader_edge.__version__,
        machine=_machine(engine),
        attention=report.attention,
        precision=report.precision,
        max_tokens=max_tokens,
        prompts=len(report.questions),
        settings_covered=whole,
        settings_covered_in_part=part,
        settings_not_covered=none,
        tokens_compared=counts.tokens_compared,
        divergences=counts.divergences,
        logit_rows=counts.logit_rows,
        logit_rows_equal=counts.logit_rows_equal,
        is_promise_kept=report.is_promise_kept,
        sample=tuple(SampleAnswer((*each.prompt.token_ids,), (*each.token_ids,), _bits(each)) for each in answers),
    )
    write_file(path, msgspec.json.format(msgspec.json.encode(certificate), indent=1) + b"\n")


def read_certificate(path: Path) -> Certificate:
    """Raises UserFileError for a file that is none."""
    return converted(
        read_json(path, UserFileError, _REMEDY, _MAX_BYTES), Certificate, f"'{path}'", UserFileError, _REMEDY
    )


def check_certificate(certificate: Certificate, path: Path, engine: Engine) -> CertificateCheck:
    """Decode its sample again here. Raises UserFileError where it is of another package, PromptError."""
    package = engine.package.fingerprint().hex()
    if certificate.package != package:
        raise UserFileError(
            f"'{path}' certifies the package {certificate.package}, not '{engine.package.folder}', which is {package}: "
            f"{_REMEDY}."
        )
    answers, counts = [], Counts()
    for each in certificate.sample:
        made, compared = _compared(engine, [each.prompt_token_ids], len(each.token_ids))
        answers += made
        counts = Counts.total([counts, compared])
    pairs = list(zip(certificate.sample, answers, strict=True))
    num_equal = sum(each.token_ids == tuple(made.token_ids) for each, made in pairs)
    num_bits = sum(each.bits == _bits(made) for each, made in pairs)
    attention = engine.package.manifest.attention
    return CertificateCheck(certificate, attention, _machine(engine), counts, num_equal, num_bits)


def check_pairs(check: CertificateCheck) -> list[tuple[str, str]]:
    """Names and values for a table."""
    certificate, counts = check.certificate, check.counts
    num = len(certificate.sample)
    names = [
        name for name in Machine.__struct_fields__ if getattr(check.machine, name) != getattr(certificate.machine, name)
    ]
    return [
        ("package", certificate.package),
        ("certified", f"{certificate.tokens_compared} tokens compared, {certificate.divergences} divergences"),
        ("combinations", f"{certificate.settings_covered} whole, {certificate.settings_covered_in_part} in part"),
        ("by", f"reader-edge {certificate.reader_edge} on {certificate.machine.processor}"),
        ("this machine", f"another: {', '.join(names)}" if names else "like that one"),
        ("sample, drafted here", f"{counts.tokens_compared} tokens compared, {counts.divergences} divergences"),
        ("its logit rows", f"{counts.logit_rows_equal} of {counts.logit_rows} bit-equal"),
        ("answers as certified", f"{check.answers_equal} of {num}, {check.bits_equal} to the bit"),
    ]


def check_verdict(check: CertificateCheck) -> str:
    """The result in a sentence."""
    if check.is_kept:
        bits = "" if check.is_elsewhere else ", to the bit"
        return f"The certificate holds: what was sampled is the same here, drafted or not, as it was certified{bits}."
    certificate = check.certificate
    if not certificate.is_promise_kept or certificate.divergences:
        return "The certificate itself says that drafting changed answers."
    if not check.is_drafting_exact:
        return "The certificate does not hold: drafting changes answers or bits here."
    if check.is_elsewhere:
        return "Other answers than certified: another machine may choose otherwise at near ties, so nothing is shown."
    return "The certificate does not hold: this machine is like the one that wrote it, and gives other answers or bits."


def _compared(engine: Engine, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> tuple[list[PlainAnswer], Counts]:
    """Plain greedy answers, and what comparing drafted ones with them found."""
    target, config = engine.decoder.target, engine.decoder.config
    given = [ReadPrompt("", list(each), list(each)) for each in prompts]
    plain = PlainAnswers(target, config, given, max_tokens)
    wanted = GenerationConfig(max_tokens, SamplingConfig(), ignores_eos=True)
    requested = [PlainAnswer(number, prompt, wanted, [], []) for number, prompt in enumerate(given)]
    answers = [plain.decoded(each, lambda: False, max_tokens) for each in requested]
    drafter = RetrievalDrafter(DraftConfig()).wait()
    decoder = make_trial_decoder(target, drafter, config, RandomWidths(), engine.width_report)
    comparers = dict[Request, LogitComparer]()
    for _ in range(_ROUNDS):
        decode(decoder, all_at_once(answers, is_drafted=True), True, comparers, lambda: False, (0, 0))
    return answers, Counts.total(each.counts for each in comparers.values())


def _bits(answer: PlainAnswer) -> str:
    return hashlib.sha256(b"".join(answer.digests)).hexdigest()


def _machine(engine: Engine) -> Machine:
    target = engine.decoder.target
    threads = num_threads(engine.decoder.config.threads)
    return Machine(processor_name(), target.provider, target.instructions or "none", target.pass_facts, threads)

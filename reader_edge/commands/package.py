"""`reader-edge package` signs packages and checks who signed them; `card` writes a page about one."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from reader_edge_runtime.package.model_package import ModelPackage


@click.group(short_help="Sign packages, and check who signed them.")
def package() -> None:
    """Sign packages, and check who signed them, without any network. Needs the extra "sign".

    A signature is the file model.sig in the package's folder, in the format of OpenSSF Model Signing: `model_signing
    verify key` checks it too. It has the SHA-256 of every file, the manifest's included, which says what was exported
    with which versions.
    """


@helpful_command("Sign a package.", "reader-edge package sign PACKAGE --key signing.key", group=package)
@click.argument("model", metavar="PACKAGE", type=MODEL)
@click.option("--key", required=True, type=options.FILE, help="Your private key, in PEM.")
def sign(model: str, key: Path) -> None:
    """Sign all files of PACKAGE, which are compared with their checksums first. An earlier signature is replaced.

    Of a model over several boxes, all stages that are there are signed, and pipeline.json along with the last one.

    \b
    A key of yours, and the public one, for those who check:
      openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out signing.key
      openssl pkey -in signing.key -pubout -out signing.pub
    """
    from reader_edge.terminal.console import byte_progress
    from reader_edge.terminal.formatting import visible
    from reader_edge_runtime.package.signature import SIGNATURE_NAME, sign_package

    stages = _stages(model)
    for opened in stages:  # all, before the first is signed
        with byte_progress("Checking the model") as on_progress:
            opened.check_files(on_progress)
    passphrase = cache(lambda: click.prompt("Passphrase", hide_input=True, err=True))
    for opened in stages:
        signature = sign_package(opened, key, passphrase)
        place = opened.folder / SIGNATURE_NAME
        click.echo(visible(f"{len(signature.files)} files signed by the key {signature.key_id} in '{place}'."))


@helpful_command("Check who signed a package.", "reader-edge package verify PACKAGE --key signing.pub", group=package)
@click.argument("model", metavar="PACKAGE", type=MODEL)
@click.option("--key", type=options.FILE, help="The public key, in PEM, whose owner must have signed it.")
def verify(model: str, key: Path | None) -> None:
    """Compare every file of PACKAGE with its signature, and the signature with KEY.

    Exit code 0: the owner of KEY has signed all of it as it is; 1: anything else.
    Without KEY, it shows which key has signed, and ends with exit code 1. That says no more than that all files are as
    somebody left them: anybody can sign with a key of his own. A key's number is what `sha256sum` prints of its
    public file. Of a model over several boxes, all stages that are there are checked.
    """
    from reader_edge.terminal.console import byte_progress, print_pairs
    from reader_edge_runtime.errors import SignatureError
    from reader_edge_runtime.package.signature import PackageSignature

    stages = _stages(model)
    signatures = [PackageSignature.read(opened.folder, key) for opened in stages]
    for opened, signature in zip(stages, signatures, strict=True):
        signature.check(opened)
        with byte_progress("Checking the model") as on_progress:
            opened.check_files(on_progress)
    manifest, num_others = stages[-1].manifest, len(stages[-1].addresses)
    signers = " and ".join(f"the key {each}" for each in dict.fromkeys(each.key_id for each in signatures))
    print_pairs(
        [
            ("signed by", f"{signers}{', which was given' if key else ''}"),
            *([("stages", f"{len(stages)} of {num_others + 1} are here")] if num_others else []),
            ("files", f"{sum(len(each.files) for each in signatures)}, all as they were signed"),
            ("exported from", f"{manifest.source_name}, fingerprint {manifest.source_fingerprint}"),
            ("exported with", ", ".join(f"{name} {version}" for name, version in manifest.exported_with.items())),
        ]
    )
    if key is None:
        raise SignatureError("Whose key it is was not checked: give the owner's public key with --key.")


def _stages(model: str) -> "list[ModelPackage]":
    """The package; of a model over several boxes all stages that are there, the last one last.

    Raises PackageError where one lies in another's folder, or is another model's.
    """
    from reader_edge.models.model_source import find_stored
    from reader_edge_runtime.errors import PackageError
    from reader_edge_runtime.package.model_package import ModelPackage

    last = ModelPackage.open(find_stored(model))
    part, num_others = last.manifest.stage, len(last.addresses)
    folders = [last.folder.with_name(str(number)) for number in range(1, num_others + 1)]
    stages = {number: ModelPackage.open(each) for number, each in enumerate(folders, 1) if each.exists()}
    for number, stage in stages.items():
        found = stage.manifest.stage
        wanted = part and (number, part.num_stages, part.whole)
        if (found and (found.number, found.num_stages, found.whole)) != wanted:
            raise PackageError(
                f"'{stage.folder}' is not stage {number} of {num_others + 1} of the model in '{last.folder}': copy "
                "that stage there, or move this away."
            )
    return [*stages.values(), last]


@helpful_command("Write a model card of a package.", "reader-edge card PACKAGE -o PACKAGE/README.md")
@click.argument("model", metavar="PACKAGE", type=MODEL)
@click.option("-o", "--output", type=options.FILE_PATH, help="The new file. Default: standard output.")
@click.option("--license", "licence", metavar="NAME", help="The source's licence, as the hub names it: apache-2.0.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def card(model: str, output: Path | None, licence: str | None, force: bool) -> None:
    """Write a page about PACKAGE for the Hugging Face hub: metadata, source, licence, sizes, quality, speed, proof.

    The licence is that of the source, where this machine has that. Speed is what was measured of passes here, if
    anything was (`reader-edge bench cost`). A certificate.json in the package (`reader-edge verify --certificate`) is
    reported too.
    """
    from reader_edge.models.model_card import licence_of, measured_cost, model_card
    from reader_edge.models.model_source import find_stored
    from reader_edge_runtime.atomic_file import write_file
    from reader_edge_runtime.package.model_package import ModelPackage

    if output is not None and output.exists() and not force:
        raise click.UsageError(f"'{output}' exists: choose another name, or --force to replace it.")
    opened = ModelPackage.open(find_stored(model))
    opened.check_files()
    licence = licence or licence_of(opened.manifest)
    page = model_card(opened, licence, measured_cost(opened))
    if licence is None:
        click.echo("The source's licence is not known here: look it up, and name it with --license.", err=True)
    if output is None:
        click.echo(page, nl=False)
    else:
        write_file(output, page.encode())


@helpful_command("Upload a package to the hub.", "reader-edge push PACKAGE OWNER/NAME --private")
@click.argument("model", metavar="PACKAGE", type=MODEL)
@click.argument("hub_id", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, help="Make the repository a private one, where there is none yet.")
def push(model: str, hub_id: str, private: bool) -> None:
    """Upload PACKAGE to the model OWNER/NAME of the Hugging Face hub, in one commit, and print its address.

    What goes there: the manifest and the files that it lists, and model.sig, README.md and certificate.json where they
    are in the package; nothing else. Log in with `hf auth login` first. Whether the source's licence lets you
    publish it is for you to read.
    """
    from reader_edge.models.model_source import find_stored, signature_notice
    from reader_edge.models.push import CARD_NAME, push_package, pushed_files
    from reader_edge.terminal.console import byte_progress
    from reader_edge.terminal.formatting import visible
    from reader_edge_runtime.package.model_package import ModelPackage
    from reader_edge_runtime.package.signature import SIGNATURE_NAME

    opened = ModelPackage.open(find_stored(model))
    with byte_progress("Checking the model") as on_progress:
        opened.check_files(on_progress)
    if notice := signature_notice(opened):  # as everybody will see it
        click.echo(visible(notice), err=True)
    for name, command in ((CARD_NAME, "card"), (SIGNATURE_NAME, "package sign")):
        if name not in pushed_files(opened):
            click.echo(f"It goes without a {name}, which `reader-edge {command}` writes.", err=True)
    click.echo(push_package(opened, hub_id, private))

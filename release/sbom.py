"""The list of components (SBOM) of the wheel with its extras, as CycloneDX 1.6 in JSON."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from release.constraints import Package

NAME = "allm-server"


class InvalidBom(Exception):
    """The document does not match CycloneDX's schema; the message says where."""


def sbom(version: str, files: Mapping[str, str], packages: list[Package], lock: Path, epoch: int) -> str:
    """Returns the document, the same for the same arguments.

    `files`: the distributions' names and sha256. `lock`: npm's lock file of the console. `epoch`: seconds since 1970.

    Raises:
        InvalidBom: CycloneDX's schema does not allow it.
    """
    root = Component(
        name=NAME,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=NAME,
        purl=PackageURL("pypi", name=NAME, version=version),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        external_references=[_distribution(name, [sha256]) for name, sha256 in files.items()],
    )
    python = {each.name: _python(each) for each in packages}
    console = list(_console(lock))
    bom = Bom(components=[*python.values(), *console])
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join((NAME, version, *sorted(files.values()))))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = root
    bom.register_dependency(root, [*_children(NAME, packages, python), *console])
    for name, component in python.items():
        bom.register_dependency(component, _children(name, packages, python))
    text: str = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise InvalidBom(str(problem))
    return text


def _children(parent: str, packages: Iterable[Package], components: Mapping[str, Component]) -> list[Component]:
    return [components[each.name] for each in packages if parent in each.parents]


def _python(package: Package) -> Component:
    marker = [Property(name="environment-marker", value=package.marker)] if package.marker else []
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=package.name,
        purl=PackageURL("pypi", name=package.name, version=package.version),
        external_references=[_distribution(f"{package.name}/", package.hashes)],  # relative to a package index
        properties=marker,
    )


def _distribution(url: str, hashes: Iterable[str]) -> ExternalReference:
    return ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(url),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in hashes],
    )


def _console(lock: Path) -> Iterator[Component]:
    """Yields the npm packages that the console's build contains."""
    for path, found in json.loads(lock.read_text(encoding="utf-8"))["packages"].items():
        if not path or found.get("dev"):
            continue
        license = found.get("license")
        scope, _, name = path.rpartition("node_modules/")[2].rpartition("/")
        sha512 = base64.b64decode(found["integrity"].removeprefix("sha512-")).hex()
        yield Component(
            group=scope or None,
            name=name,
            version=found["version"],
            type=ComponentType.LIBRARY,
            bom_ref=f"npm:{path}",
            purl=PackageURL("npm", scope, name, found["version"]),
            licenses=[LicenseFactory().make_from_string(license)] if license else [],
            hashes=[HashType(alg=HashAlgorithm.SHA_512, content=sha512)],
        )

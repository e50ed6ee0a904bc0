"""The import contract that keeps rooms closed: a package's ``__init__`` lists what other packages may use."""

import grimp
from importlinter import Contract, ContractCheck, output


class RoomsAreClosed(Contract):
    """No module imports an underscore module of another package, for types neither.

    A package is a room. Its modules begin with an underscore and may import each other; everybody else, its parent and
    its subpackages included, imports from the package itself.
    """

    type_name = "rooms"

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - as import-linter calls it
        """Look at every import of the package, those for type checkers included."""
        (root,) = self.session_options["root_packages"]
        graph = grimp.build_graph(
            root, include_external_packages=False, exclude_type_checking_imports=False, cache_dir=None
        )
        packages = {module.rpartition(".")[0] for module in graph.modules}
        broken = []
        for imported in sorted(graph.modules):
            room, _, name = imported.rpartition(".")
            if not name.startswith("_") or room == root:
                continue
            broken += [
                f"{importer} imports {imported}"
                for importer in sorted(graph.find_modules_that_directly_import(imported))
                if (importer if importer in packages else importer.rpartition(".")[0]) != room
            ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name each import and what to write instead."""
        for line in check.metadata["broken"]:
            output.print_error(line, bold=False)
        output.print_error("Import from the package, and list the name in its __init__.", bold=True)

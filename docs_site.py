"""A hook of MkDocs: adds to the documentation the page that is made from the code."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from kvferry.scenarios.schema_page import schema_page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference.md", content=schema_page()))
    return files

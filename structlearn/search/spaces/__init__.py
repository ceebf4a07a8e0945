"""Search spaces, one file each."""

from structlearn.search.spaces.chunking import ChunkingSpace as ChunkingSpace
from structlearn.search.spaces.tagging import TaggingSpace as TaggingSpace

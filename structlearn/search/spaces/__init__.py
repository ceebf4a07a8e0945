"""Search spaces, one file each."""

from structlearn.search.spaces.tagging import TaggingSpace as TaggingSpace

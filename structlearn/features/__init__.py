"""Joint feature maps Psi(x, y) as modules: called on inputs they give a structure; ``joint`` gives Psi itself."""

from structlearn.features.chain import ChainMap as ChainMap

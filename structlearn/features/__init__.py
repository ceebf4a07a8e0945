"""Joint feature maps Psi(x, y) as modules: called on inputs they give a structure; ``joint`` gives Psi itself."""

from structlearn.features.alignment import AlignmentMap as AlignmentMap
from structlearn.features.alignment import EncoderAlignmentMap as EncoderAlignmentMap
from structlearn.features.base import FeatureMap as FeatureMap
from structlearn.features.candidates import CandidateMap as CandidateMap
from structlearn.features.chain import ChainMap as ChainMap
from structlearn.features.grammar import RuleMap as RuleMap
from structlearn.features.homologues import Family as Family
from structlearn.features.homologues import HomologueChoiceMap as HomologueChoiceMap
from structlearn.features.homologues import HomologueMap as HomologueMap
from structlearn.features.multiclass import MulticlassMap as MulticlassMap
from structlearn.features.multiclass import TaxonomyMap as TaxonomyMap
from structlearn.features.segment import SegmentMap as SegmentMap
from structlearn.features.span import SpanScorerMap as SpanScorerMap
from structlearn.features.sparse import SparseChainMap as SparseChainMap
from structlearn.features.sparse_segment import SparseSegmentMap as SparseSegmentMap
from structlearn.features.tag_span import TagSpanMap as TagSpanMap

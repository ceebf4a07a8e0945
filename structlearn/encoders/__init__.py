"""Encoders: inputs to vectors, for the ``encoder`` of every task."""

from structlearn.encoders.base import MLP as MLP
from structlearn.encoders.base import Dense as Dense
from structlearn.encoders.base import Encoder as Encoder
from structlearn.encoders.embedding import WordsAndLetters as WordsAndLetters
from structlearn.encoders.letters import LetterCNN as LetterCNN
from structlearn.encoders.pretrained import HuggingFace as HuggingFace
from structlearn.encoders.sequence import CNN as CNN
from structlearn.encoders.sequence import BiLSTM as BiLSTM
from structlearn.encoders.sequence import Transformer as Transformer
from structlearn.encoders.text import BagOfWords as BagOfWords
from structlearn.encoders.text import Pooled as Pooled

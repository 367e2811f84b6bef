"""Other attentions for the attention slot, one adapter a file: pip install 'longshort[baselines]'.

Every spec says of padding: `masks_padding`, what stands in it reaches no real token; `counts_padding`, how much of it
there is still matters.
"""

from longshort.baselines.bigbird import BigBird
from longshort.baselines.linear import LinearTransformer
from longshort.baselines.linformer import Linformer
from longshort.baselines.linformer_window import LinformerWindow
from longshort.baselines.longformer import Longformer
from longshort.baselines.nystromformer import Nystromformer
from longshort.baselines.performer import Performer
from longshort.baselines.reformer import Reformer
from longshort.baselines.sinkhorn import Sinkhorn

__all__ = [
    "BigBird",
    "LinearTransformer",
    "Linformer",
    "LinformerWindow",
    "Longformer",
    "Nystromformer",
    "Performer",
    "Reformer",
    "Sinkhorn",
]

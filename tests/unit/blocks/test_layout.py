import pytest

from prefold.blocks.layout import KvLayout, LayerShape
from prefold.errors import ConfigError

LAYER = LayerShape(num_kv_heads=2, key_size=8, value_size=4)


def test_bytes_are_summed_over_layers_and_tokens() -> None:
    wide = LayerShape(num_kv_heads=1, key_size=16, value_size=16)
    layout = KvLayout(block_size=16, layers=(LAYER, wide), itemsize=4)
    assert layout.token_bytes == 4 * (2 * 12 + 32)
    assert layout.block_bytes == 16 * layout.token_bytes


def test_scales_are_counted_and_begin_at_a_multiple_of_their_size() -> None:
    odd = LayerShape(num_kv_heads=1, key_size=3, value_size=2)
    layout = KvLayout(block_size=5, layers=(LAYER, odd), itemsize=1, scale_itemsize=4)
    # 24 and 5 numbers a token, 2 and 1 heads, keys and values.
    assert layout.token_bytes == 29 + 4 * 6
    assert layout.scale_offset == 148  # 5 x 29 = 145, and three bytes of nothing
    assert layout.block_bytes == 148 + 4 * 6 * 5
    plain = KvLayout(block_size=5, layers=(LAYER, odd), itemsize=1)
    assert plain.block_bytes == 145


def test_a_negative_size_of_scales_is_refused() -> None:
    with pytest.raises(ConfigError, match="scale_itemsize"):
        KvLayout(block_size=5, layers=(LAYER,), itemsize=1, scale_itemsize=-4)


@pytest.mark.parametrize(
    ("block_size", "layers", "itemsize", "message"),
    [
        (0, (LAYER,), 4, "block_size must be at least 1, got 0"),
        (16, (), 4, "at least one layer"),
        (16, (LAYER,), 0, "itemsize must be at least 1 byte, got 0"),
    ],
)
def test_senseless_layouts_are_refused(
    block_size: int, layers: tuple[LayerShape, ...], itemsize: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        KvLayout(block_size=block_size, layers=layers, itemsize=itemsize)

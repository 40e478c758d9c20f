import pytest
import tensorflow as tf

from macaron_tf.distribution import emulates_bfloat16

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("flags", "emulated"),
    [
        ("flags : fpu avx512f avx512_vnni", True),
        ("flags : fpu avx512f avx512_bf16", False),
        ("flags : amx_bf16 amx_tile", False),
        ("Features : fp asimd bf16", False),
        (None, False),
    ],
)
def test_bfloat16_is_emulated_where_the_cpu_names_no_instruction(tmp_path, flags, emulated):
    path = tmp_path / "cpuinfo"
    if flags is not None:
        path.write_text(f"model name : some\n{flags}\n")
    assert emulates_bfloat16(tf.distribute.get_strategy(), str(path)) == emulated

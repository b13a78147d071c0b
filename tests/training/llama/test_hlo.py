"""What ``tests/nxd/hlo.py`` counts, in a text that is short enough to count by hand."""

from __future__ import annotations

from tests.nxd.hlo import LARGE, cost

TEXT = """\
HloModule IrToHlo.9, entry_computation_layout={(f32[4096,4096]{1,0})->(f32[4096,4096]{1,0})}

%AddComputation.1 (x.2: bf16[], y.3: bf16[]) -> bf16[] {
  %x.2 = bf16[] parameter(0)
  %y.3 = bf16[] parameter(1)
  ROOT %add.4 = bf16[] add(bf16[] %x.2, bf16[] %y.3)
}

ENTRY %IrToHlo.99 (p0.5: bf16[4096,512], p1.6: bf16[4096,512], p2.7: f32[4096,4096]) -> (f32[]) {
  %p0.5 = bf16[4096,512]{1,0} parameter(0), sharding={replicated}
  %p1.6 = bf16[4096,512]{1,0} parameter(1)
  %p2.7 = f32[4096,4096]{1,0} parameter(2)
  %transpose.8 = bf16[512,4096]{0,1} transpose(bf16[4096,512]{1,0} %p1.6), dimensions={1,0}
  %dot.9 = bf16[4096,4096]{1,0} dot(bf16[4096,512]{1,0} %p0.5, bf16[512,4096]{0,1} %transpose.8), \
lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %constant.10 = bf16[] constant(0)
  %all-reduce.11 = (bf16[4096,4096]{1,0}, bf16[]) all-reduce(bf16[4096,4096]{1,0} %dot.9, \
bf16[] %constant.10), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%AddComputation.1
  %get-tuple-element.12 = bf16[4096,4096]{1,0} get-tuple-element((bf16[4096,4096]{1,0}, \
/*index=5*/bf16[]) %all-reduce.11), index=0
  %reshape.13 = bf16[1,4096,4096]{2,1,0} reshape(bf16[4096,4096]{1,0} %get-tuple-element.12)
  %reduce-scatter.14 = bf16[1,1024,4096]{2,1,0} reduce-scatter(bf16[1,4096,4096]{2,1,0} \
%reshape.13), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={1}, to_apply=%AddComputation.1
  %all-gather.15 = bf16[1,4096,4096]{2,1,0} all-gather(bf16[1,1024,4096]{2,1,0} \
%reduce-scatter.14), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={1}
  %reshape.16 = bf16[4096,4096]{1,0} reshape(bf16[1,4096,4096]{2,1,0} %all-gather.15)
  %convert.17 = f32[4096,4096]{1,0} convert(bf16[4096,4096]{1,0} %reshape.16)
  %add.18 = f32[4096,4096]{1,0} add(f32[4096,4096]{1,0} %p2.7, f32[4096,4096]{1,0} %convert.17)
  ROOT %tuple.19 = (f32[4096,4096]{1,0}) tuple(f32[4096,4096]{1,0} %add.18)
}
"""
FOUND = cost(TEXT)
WHOLE = 4096 * 4096 * 2
"""Bytes of the product in bf16."""
assert WHOLE == LARGE


def test_a_product_is_two_operations_for_each_pair_of_numbers() -> None:
    assert FOUND.flops == 2 * 4096 * 512 * 4096


def test_a_ring_sends_all_parts_but_one_and_a_sum_for_all_twice() -> None:
    assert FOUND.counts == {"all-reduce": 1, "reduce-scatter": 1, "all-gather": 1}
    assert FOUND.sent_bytes == (2 * (WHOLE + 2) + WHOLE + WHOLE) * 3 / 4
    assert FOUND.reduced == ["bf16[4096,4096] bf16[] over 4"]


def test_names_of_what_is_there_are_no_large_results() -> None:
    assert FOUND.large == {
        "dot bf16[4096,4096]": 1,
        "all-reduce bf16[4096,4096]": 1,
        "all-gather bf16[1,4096,4096]": 1,
        "convert f32[4096,4096]": 1,
        "add f32[4096,4096]": 1,
    }
    assert FOUND.large_bytes == 3 * WHOLE + 2 + 4 * WHOLE


def test_alive_is_what_is_read_later_and_an_updated_input_takes_no_room() -> None:
    # The gathered tensor, by two other names, and its copy in fp32; the sum replaces an input.
    assert FOUND.peak_bytes == WHOLE + 2 * WHOLE

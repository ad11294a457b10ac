"""What Debian's python3-pyverbs 44 answers, recorded in `pyverbs_44.json`: every constant of its enumerations, its
words for codes, and what the attributes of its objects are when nothing, or everything, is given."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

RECORDED = json.loads((Path(__file__).parent / "pyverbs_44.json").read_text())

# rdma-core 60's libibverbs/verbs.h and librdmacm/rdma_cma.h: what version 44 has not
SINCE = {
    "IBV_ACCESS_FLUSH_GLOBAL": 1 << 8,
    "IBV_ACCESS_FLUSH_PERSISTENT": 1 << 9,
    "IBV_ADVISE_MR_ADVICE_PREFETCH": 0,
    "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT": 2,
    "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE": 1,
    "IBV_ADVISE_MR_FLAG_FLUSH": 1,
    "IBV_DEVICE_CC_DMA_BOUNCE": 1 << 41,
    "IBV_DEVICE_PCI_WRITE_END_PADDING": 1 << 36,
    "IBV_DEVICE_RAW_SCATTER_FCS": 1 << 34,
    "IBV_DMAH_INIT_ATTR_MASK_CPU_ID": 1 << 0,
    "IBV_DMAH_INIT_ATTR_MASK_PH": 1 << 1,
    "IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE": 1 << 2,
    "IBV_EVENT_DEVICE_SPEED_CHANGE": 20,
    "IBV_FLUSH_GLOBAL": 1 << 0,
    "IBV_FLUSH_PERSISTENT": 1 << 1,
    "IBV_FLUSH_RANGE": 0,
    "IBV_FLUSH_MR": 1,
    "IBV_ODP_SUPPORT_FLUSH": 1 << 6,
    "IBV_ODP_SUPPORT_ATOMIC_WRITE": 1 << 7,
    "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC": 1 << 2,
    "IBV_QP_EX_WITH_FLUSH": 1 << 11,
    "IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS": 1 << 0,
    "IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG": 1 << 0,
    "IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES": 1 << 1,
    "IBV_REG_MR_MASK_IOVA": 1 << 0,
    "IBV_REG_MR_MASK_ADDR": 1 << 1,
    "IBV_REG_MR_MASK_FD": 1 << 2,
    "IBV_REG_MR_MASK_FD_OFFSET": 1 << 3,
    "IBV_REG_MR_MASK_DMAH": 1 << 4,
    "IBV_REG_MR_MASK_BUF": 1 << 5,
    "IBV_TPH_MEM_TYPE_VM": 0,
    "IBV_TPH_MEM_TYPE_PM": 1,
    "IBV_WC_FLUSH": 8,
    "IBV_WR_FLUSH": 14,
}
CM_SINCE = {
    "RAI_SA": 1 << 4,
    "RAI_DNS": 1 << 5,
    "RDMA_CM_EVENT_ADDRINFO_RESOLVED": 16,
    "RDMA_CM_EVENT_ADDRINFO_ERROR": 17,
}
WORDS_IN = {
    "utils": ("qp_type_to_str", "qp_state_to_str", "mtu_to_str", "access_flags_to_str", "mig_state_to_str",
              "rereg_error_to_str", "be64toh"),
    "cq": ("cqe_status_to_str", "cqe_opcode_to_str", "cqe_flags_to_str"),
    "wr": ("send_flags_to_str",),
    "mr": ("mwtype2str",),
}  # fmt: skip


def module(name: str):
    return importlib.import_module(f"fabrictwin.verbs.pyverbs.{name}")


@pytest.mark.parametrize(("name", "since"), [("enums", SINCE), ("cm_enums", CM_SINCE)])
def test_every_constant_is_rdma_core_s(name, since):
    ours = {
        key: int(value)
        for key, value in vars(module(name)).items()
        if key.startswith(("IBV_", "_IBV_", "RDMA_", "RAI_")) and isinstance(value, int)
    }
    expected = RECORDED[name] | since
    assert {key: ours.get(key) for key in expected} == expected
    assert {key.removeprefix("_") for key in ours} <= {key.removeprefix("_") for key in expected}


@pytest.mark.parametrize("function", sorted(RECORDED["text"]))
def test_codes_have_rdma_core_s_words(function):
    home = next((name for name, functions in WORDS_IN.items() if function in functions), "device")
    said = getattr(module(home), function)
    recorded = RECORDED["text"][function]
    assert {code: said(int(code)) for code in recorded} == recorded


@pytest.mark.parametrize("made", sorted(RECORDED["attributes"]))
def test_attributes_are_what_rdma_core_s_are(made):
    home, call = made.split(".", 1)
    name, given = call.rstrip(")").split("(", 1)
    arguments = [None if one == "None" else int(one) for one in given.split(", ") if one]
    found = getattr(module(home), name)(*arguments)
    recorded = RECORDED["attributes"][made]
    assert {field: getattr(found, field) for field in recorded} == recorded

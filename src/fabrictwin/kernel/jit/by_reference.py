"""How compiled functions hand on a set of arrays: as one pointer.

numba passes a NamedTuple of arrays by value, seven scalars an array, to every function and back into a tuple
there. A simulation whose state is forty arrays then spends most of its compile time on passing arguments. A
NamedTuple class that is registered here is passed as the address of a table instead, which says where its arrays
are; the tuple keeps the table. Compiled code writes into the arrays and never replaces one.

With the JIT off nothing changes: the NamedTuple itself is passed. So it is with `FABRICTWIN_PLAIN_NUMBA=1`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from fabrictwin.kernel.jit.plain import PLAIN

_WORD = ir.IntType(64)


class Table(types.Type):
    """A NamedTuple class and the types of its arrays."""

    def __init__(self, named, members):
        self.named = named
        self.members = members
        for field, member in zip(named._fields, members, strict=True):
            if not isinstance(member, Table) and getattr(member, "layout", "") != "C":
                raise TypeError(f"{named.__qualname__}.{field}: expected an array in C order, got {member}")
        super().__init__(name=f"{named.__module__}.{named.__qualname__}({', '.join(map(str, members))})")

    def start(self, at):
        """The word of the table at which a member begins: an array's address and shape, or a table's address."""
        return sum(1 if isinstance(member, Table) else 1 + member.ndim for member in self.members[:at])


def by_reference(named):
    """Class decorator of a NamedTuple of arrays or of such tuples: compiled functions get its table's address."""
    if PLAIN:
        return named

    def table(self):
        words = []
        for member in self:
            if isinstance(member, np.ndarray):
                words += [member.ctypes.data, *member.shape]
            else:
                words.append(member.table.ctypes.data)
        return np.array(words, np.int64)

    words = cached_property(table)
    kept = type(
        named.__name__,
        (named,),
        {"__doc__": named.__doc__, "__module__": named.__module__, "table": words},
    )
    words.__set_name__(kept, "table")

    @typeof_impl.register(kept)
    def _type_of(value, context):
        return Table(kept, tuple(typeof_impl(member, context) for member in value))

    return kept


@register_model(Table)
class _TableModel(models.PrimitiveModel):
    def __init__(self, manager, table):
        super().__init__(manager, table, _WORD.as_pointer())


@unbox(Table)
def _address(table, named, c):
    words = c.pyapi.object_getattr_string(named, "table")
    array = types.Array(types.int64, 1, "C")
    native = c.unbox(array, words)
    address = c.context.make_array(array)(c.context, c.builder, native.value).data
    if c.context.enable_nrt:
        c.context.nrt.decref(c.builder, array, native.value)
    c.pyapi.decref(words)  # the tuple keeps them
    return NativeValue(address, is_error=native.is_error)


@infer_getattr
class _Fields(AttributeTemplate):
    key = Table

    def generic_resolve(self, table, field):
        fields = table.named._fields
        return table.members[fields.index(field)] if field in fields else None


@lower_getattr_generic(Table)
def _member(context, builder, table, words, field):
    """A view of one member, or the address of a member that is a table itself."""
    at = table.named._fields.index(field)
    member = table.members[at]

    def load(word):
        return builder.load(builder.gep(words, [ir.Constant(_WORD, table.start(at) + word)]))

    if isinstance(member, Table):
        return builder.inttoptr(load(0), _WORD.as_pointer())
    shape = [load(1 + axis) for axis in range(member.ndim)]
    strides = [context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(member.dtype)))]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    items = shape[0]
    for length in shape[1:]:
        items = builder.mul(items, length)
    model = context.data_model_manager[member]
    view = ir.Constant(model.get_value_type(), None)
    for name, value in (
        ("nitems", items),
        ("itemsize", strides[-1]),
        ("data", builder.inttoptr(load(0), context.get_value_type(types.CPointer(member.dtype)))),
        ("shape", cgutils.pack_array(builder, shape)),
        ("strides", cgutils.pack_array(builder, strides)),
    ):
        view = model.set(builder, view, value, name)
    return view


if config.DISABLE_JIT or PLAIN:

    def addresses(tables: Any) -> Any:
        """Return what `table_at` finds them by."""
        return tables

    def table_at(like, found, index):
        """Return one of several tuples."""
        return found[index]

else:

    def addresses(tables: Any) -> Any:
        """Return int64 addresses of tuples, all of one type, which must live as long as these are used."""
        return np.array([each.table.ctypes.data for each in tables], np.int64)

    @intrinsic
    def table_at(typingctx, like, found, index):
        """Return one of several tuples of the type of `like` by its address."""

        def codegen(context, builder, signature, args):
            view = context.make_array(signature.args[1])(context, builder, args[1])
            at = context.cast(builder, args[2], signature.args[2], types.intp)
            return builder.inttoptr(builder.load(builder.gep(view.data, [at])), _WORD.as_pointer())

        return like(like, found, index), codegen

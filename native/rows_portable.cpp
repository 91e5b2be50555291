// Steps between matrix products for every processor that the compiler knows.
#define PREFOLD_ISA prefold_rows_portable
#include "rows.inl"

namespace prefold {
const RowKernel kPortableRows = {"portable",
                             prefold_rows_portable::normalize,
                             prefold_rows_portable::rotate,
                             prefold_rows_portable::multiply,
                             prefold_rows_portable::add,
                             prefold_rows_portable::round};
}

// Activations for every processor that the compiler knows.
#define PREFOLD_ISA prefold_activation_portable
#include "activation.inl"

namespace prefold {
const ActivationKernel kPortableActivation = {"portable", prefold_activation_portable::apply,
                                        prefold_activation_portable::apply_narrow};
}

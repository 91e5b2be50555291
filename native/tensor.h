// Tensors that Python passes, looked at where they lie.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string>

namespace prefold {

// What a call needs of one tensor. Valid as long as the Python object lives.
//
// Asks by DLPack's exchange functions where the tensor's class has them: nothing is
// created and nothing counted, so it takes a hundredth of the time of DLPack's capsules,
// and a step has hundreds of calls.
class Tensor {
 public:
  Tensor(nanobind::handle object, const char* name) {
    if (!look(object)) hold(object, name);
  }
  Tensor(const Tensor&) = delete;

  void* data() const { return static_cast<char*>(view_.data) + view_.byte_offset; }
  size_t ndim() const { return size_t(view_.ndim); }
  int64_t shape(size_t axis) const { return view_.shape[axis]; }
  int64_t stride(size_t axis) const { return view_.strides[axis]; }
  nanobind::dlpack::dtype dtype() const { return view_.dtype; }
  int device_type() const { return view_.device.device_type; }

  int64_t size() const {
    int64_t count = 1;
    for (size_t axis = 0; axis < ndim(); ++axis) count *= shape(axis);
    return count;
  }

 private:
  // The struct that DLPack 1.3 defines, up to what is used.
  struct ExchangeFunctions {
    uint32_t major, minor;
    ExchangeFunctions* older;
    void* unused[3];
    int (*look)(void* object, nanobind::dlpack::dltensor* out);
  };

  bool look(nanobind::handle object) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
    PyObject* capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    if (capsule == nullptr) {
      PyErr_Clear();
      return false;
    }
    const auto* functions = static_cast<const ExchangeFunctions*>(
        PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    Py_DECREF(capsule);
    const bool is_known = functions != nullptr && functions->major == 1 &&
                          functions->look != nullptr;
    // A tensor that has no strides to show is left to the slower way.
    if (is_known && functions->look(object.ptr(), &view_) == 0) {
      return view_.ndim == 0 || view_.strides != nullptr;
    }
    PyErr_Clear();
    return false;
  }

  void hold(nanobind::handle object, const char* name) {
    nanobind::ndarray<> array;
    if (!nanobind::try_cast(object, array)) {
      throw nanobind::value_error((std::string(name) + " must be a tensor").c_str());
    }
    held_ = array;
    view_.data = array.data();
    view_.byte_offset = 0;
    view_.device = {array.device_type(), array.device_id()};
    view_.dtype = array.dtype();
    view_.ndim = int32_t(array.ndim());
    view_.shape = const_cast<int64_t*>(array.shape_ptr());
    view_.strides = const_cast<int64_t*>(array.stride_ptr());
  }

  nanobind::dlpack::dltensor view_{};
  std::optional<nanobind::ndarray<>> held_;
};

}  // namespace prefold

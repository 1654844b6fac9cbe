/* An extension of Python that doubles float32 values by address and knows nothing of torch. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *twice(PyObject *self, PyObject *tensor) {
    PyObject *address = PyObject_CallMethod(tensor, "data_ptr", NULL);
    PyObject *count = address ? PyObject_CallMethod(tensor, "numel", NULL) : NULL;
    if (count) {
        float *values = PyLong_AsVoidPtr(address);
        for (long at = 0, end = PyLong_AsLong(count); at < end; at++) values[at] *= 2;
    }
    Py_XDECREF(address);
    Py_XDECREF(count);
    if (!count) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "twice", "", -1, methods};
PyMODINIT_FUNC PyInit_twice(void) { return PyModule_Create(&module); }

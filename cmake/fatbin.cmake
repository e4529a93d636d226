# SPDX-License-Identifier: BSD-2-Clause
# gpunvme_fatbin(VAR SOURCE) compiles the device code of one CUDA file in the
# form that the driver API loads, for programs that embed it and find the driver
# at run time. VAR is set to the file, which is built when a target depends on
# it, and again when a header that it includes has changed.
function(gpunvme_fatbin var source)
    get_filename_component(name ${source} NAME_WE)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
    set(code)
    set(real ${GPUNVME_CUDA_ARCHITECTURES})
    list(FILTER real EXCLUDE REGEX "-virtual$")
    foreach(arch ${real})
        list(APPEND code -gencode=arch=compute_${arch},code=sm_${arch})
    endforeach()
    # The last architecture is also included as PTX, for later devices.
    list(GET GPUNVME_CUDA_ARCHITECTURES -1 arch)
    string(REPLACE "-virtual" "" arch ${arch})
    list(APPEND code -gencode=arch=compute_${arch},code=compute_${arch})
    add_custom_command(
        OUTPUT ${out}
        COMMAND ${CMAKE_CUDA_COMPILER} -fatbin -std=c++17 -O3 ${code} -I${PROJECT_SOURCE_DIR}
                -I${PROJECT_SOURCE_DIR}/include -MD -MT ${out} -MF ${out}.d
                -o ${out} ${source}
        DEPENDS ${source}
        DEPFILE ${out}.d
        COMMENT "Compiling ${name}.fatbin"
        VERBATIM)
    set(${var} ${out} PARENT_SCOPE)
endfunction()

/* SPDX-License-Identifier: BSD-2-Clause */
// What a plug-in's caller needs of NIXL's library besides its headers: lists of descriptors.
#include <backend/backend_plugin.h>

nixlBasicDesc::nixlBasicDesc(const uintptr_t &addr_, const size_t &len_, const uint64_t &dev_id)
    : addr(addr_), len(len_), devId(dev_id)
{
}

nixlBlobDesc::nixlBlobDesc(const uintptr_t &addr_, const size_t &len_, const uint64_t &dev_id,
                           const nixl_blob_t &meta_info)
    : nixlBasicDesc(addr_, len_, dev_id), metaInfo(meta_info)
{
}

template <class T>
nixlDescList<T>::nixlDescList(const nixl_mem_t &type_, const int &count)
    : type(type_), descs(static_cast<size_t>(count))
{
}

template <class T> void nixlDescList<T>::resize(const size_t &count)
{
    descs.resize(count);
}

template <class T> void nixlDescList<T>::addDesc(const T &desc)
{
    descs.push_back(desc);
}

template <class T> int nixlDescList<T>::getIndex(const nixlBasicDesc &) const
{
    return -1;
}

template class nixlDescList<nixlMetaDesc>;
template class nixlDescList<nixlBlobDesc>;

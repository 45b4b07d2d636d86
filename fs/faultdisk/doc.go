// Package faultdisk is a disk that fails on request, for tests. It is not part of the
// program.
//
// An Image is the disk: a file of fixed size, and above it a volatile write cache, as
// disks have one. A write goes to the cache, and a flush moves the cache to the file. A
// power cut loses the cache. Serve is a FUSE file system whose only file is the image, so
// that a loop device can be attached to it: the kernel then formats and mounts the disk
// like any other. The loop device turns each flush of the file system into an fsync of
// the image.
//
// The process that serves the image must not use the mount. It is therefore a child
// process, which calls Run; its parent controls it by a Disk. All methods of a Disk that
// can block for ever when the disk hangs run commands in child processes, with a time-out.
package faultdisk

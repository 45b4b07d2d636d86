// Milkweed-k8s is the part of Milkweed for Kubernetes. Each of its commands is the main process of
// a container, and runs the program milkweed as a child process:
//
//	milkweed-k8s csi       the CSI node plugin: mounts volumes for pods
//	milkweed-k8s mounter   serves the mounts of the plugin, without privileges
package main

package main

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// sanityProgram returns the path of csi-sanity, which .ci/deps.sh installs.
func sanityProgram(t *testing.T) string {
	t.Helper()
	drivertest.Need(t, "csi-sanity")
	path, err := drivertest.Installed("csi-sanity")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The plugin passes csi-sanity, with a mounter that has no privilege, and with mounts that are real.
func TestSanity(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the conformance tests of CSI drivers")
	}
	program := sanityProgram(t)
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	out, err := exec.Command(program, "-csi.endpoint", n.dir+"/csi/csi.sock", "-csi.controllerendpoint", n.serveController(),
		"-csi.mountdir", n.kubelet+"/mount", "-csi.stagingdir", n.kubelet+"/staging", "-ginkgo.no-color", "-ginkgo.v",
		"-ginkgo.focus", "Node Service|Identity Service").CombinedOutput()
	if err != nil {
		t.Errorf("csi-sanity: %v\n%s", err, out)
	}
	for _, test := range []string{
		"should remove target path",
		"should fail when volume does not exist on the specified path", "should fail when no volume capability is provided",
	} {
		_, rest, _ := bytes.Cut(out, []byte(test))
		if result, _, _ := strings.Cut(string(rest), "\n------"); !strings.Contains(result, "• ") || strings.Contains(result, "SKIPPED") {
			t.Errorf("csi-sanity has not run %q:\n%s", test, out)
		}
	}
}

// serveController serves a controller for the tests of csi-sanity that mount: it needs one that makes
// volumes, and Milkweed has none.
func (n *node) serveController() (address string) {
	n.t.Helper()
	path := n.dir + "/csi/controller.sock"
	l, err := net.Listen("unix", path)
	n.check(err)
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, &controller{source: n.source})
	csi.RegisterIdentityServer(server, &identity{plugin: n.identity})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	n.t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return path
}

// An identity passes requests on to the plugin: csi-sanity asks the controller who it is.
type identity struct {
	csi.UnimplementedIdentityServer
	plugin csi.IdentityClient
}

func (i *identity) GetPluginInfo(ctx context.Context, r *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return i.plugin.GetPluginInfo(ctx, r)
}

func (i *identity) GetPluginCapabilities(ctx context.Context, r *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return i.plugin.GetPluginCapabilities(ctx, r)
}

func (i *identity) Probe(ctx context.Context, r *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return i.plugin.Probe(ctx, r)
}

// A controller makes volumes whose attributes are those of an inline volume.
type controller struct {
	csi.UnimplementedControllerServer
	source string
}

func (c *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:      r.GetName(),
		VolumeContext: map[string]string{sourceKey: c.source, ephemeralKey: "true"},
	}}, nil
}

func (c *controller) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{}, nil
}

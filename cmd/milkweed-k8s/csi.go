package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// driverName is the name of the CSI driver.
const driverName = "csi.milkweedfs.github.io"

const csiLong = `Csi is the node plugin of the CSI driver ` + driverName + `. For each
volume of a pod, it mounts /dev/fuse at the path that kubelet gives, and passes
the descriptor to milkweed-k8s mounter, which serves the mount without
privileges. Volumes with the same attributes and secrets share a daemon and its
file system. When the last of them is unmounted, the daemon ends.

The attributes of a volume (volumeAttributes) are
  source         the directory or the URL of the dataset; required
  options        options of milkweed mount -o, such as "mode=cached,workers=8"
  configuration  a configuration in TOML; for persistent volumes only

The secret of nodePublishSecretRef has environment variables for the daemon,
such as AWS_ACCESS_KEY_ID, and GOOGLE_CREDENTIALS, the content of the file of a
service account.

A volume is read-only: a persistent volume has the access mode ReadOnlyMany, or
is mounted with readOnly: true.

The plugin needs root with CAP_SYS_ADMIN, /dev/fuse, and the folder of kubelet
with mountPropagation: Bidirectional. It makes the folder of the socket and
those of --mounter-dir, and gives them to the user of the mounter. The plugin
can be restarted at any time: its state is the kernel's table of mounts.

If a daemon dies, the plugin mounts its volumes again, over the dead mounts. A
plugin that was restarted does so from the time when kubelet has published the
volume again (requiresRepublish: true). A container sees the new mount only with
mountPropagation: HostToContainer, and without subPath; otherwise its pod must
be restarted. Files that were open fail with ENOTCONN, and must be opened again.`

const csiExample = `  milkweed-k8s csi --node-name "$NODE_NAME"
  milkweed-k8s csi --node-name node1 --mounter-uid 1000 --mounter-dir /tier/ssd`

func newCSI() *cobra.Command {
	var p plugin
	var endpoint string
	c := &cobra.Command{
		Use:     "csi",
		Short:   "Mount volumes for pods: the CSI node plugin",
		Long:    csiLong,
		Example: csiExample,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if p.node == "" {
				return usageError(c, errors.New("flag --node-name is missing"))
			}
			p.log = newLog(c.ErrOrStderr())
			return p.run(c.Context(), endpoint)
		},
	}
	c.Flags().StringVar(&endpoint, "endpoint", "unix:///csi/csi.sock", "listen on this `URL`, for kubelet")
	c.Flags().StringVar(&p.node, "node-name", "", "the `NAME` of the node in Kubernetes; required")
	c.Flags().StringVar(&p.mounter.socket, "mounter-socket", defaultSocket, "the `PATH` of the socket of the mounter")
	c.Flags().IntVar(&p.mounter.uid, "mounter-uid", 65532, "the user `ID` of the mounter")
	c.Flags().StringArrayVar(&p.mounterDirs, "mounter-dir", nil, "make the folder `DIR` for the mounter, such as one for a tier; repeated")
	c.Flags().StringArrayVar(&p.extraSecrets, "secret-env", nil, "a secret may have the key `NAME`, too; repeated")
	return c
}

// A plugin is the CSI plugin of a node.
type plugin struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	node         string
	mounter      mounterClient
	mounterDirs  []string
	extraSecrets []string
	log          *slog.Logger

	keeper        keeper
	targets, keys locks      // one request at a time for a target, and for a key; targets first
	table         sync.Mutex // held while mounts are found and bound, and while one is made or removed

	// owners has the keys of the volumes, by the device numbers of their file systems, which the kernel
	// uses again. Those of mounts from before the start of the plugin are missing. table guards it.
	owners map[uint64]string
}

// run serves the endpoint until ctx is done.
func (p *plugin) run(ctx context.Context, endpoint string) error {
	for _, dir := range append([]string{filepath.Dir(p.mounter.socket)}, p.mounterDirs...) {
		if err := p.giveToMounter(dir); err != nil {
			return err
		}
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("endpoint %q", endpoint), Remedy: "Write an endpoint as in unix:///csi/csi.sock."}
	}
	l, err := replaceSocket("unix", path)
	if err != nil {
		return err
	}
	defer p.keeper.end()
	server := grpc.NewServer(grpc.UnaryInterceptor(p.intercept), grpc.WaitForHandlers(true))
	csi.RegisterIdentityServer(server, p)
	csi.RegisterNodeServer(server, p)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		defer panics.Contain()
		server.Stop() // ends requests in progress, which kubelet repeats
	})
	p.log.Info("listening", "endpoint", endpoint, "node", p.node)
	err = server.Serve(l)
	if !stop() {
		<-stopped
		return nil
	}
	return err
}

// giveToMounter makes a folder that only the user of the mounter may enter.
func (p *plugin) giveToMounter(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Chown(dir, p.mounter.uid, -1)
	}
	if err == nil {
		err = os.Chmod(dir, 0o700)
	}
	if err != nil {
		return &exit.Error{Code: exit.Failure, Err: err, Remedy: "The plugin needs root, and the folder from the node as a hostPath."}
	}
	return nil
}

// intercept contains the panics of a request, and logs its errors.
func (p *plugin) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	err = panics.Do(func() (err error) {
		reply, err = handler(ctx, request)
		return err
	})
	if err == nil {
		return reply, nil
	}
	if _, ok := status.FromError(err); !ok {
		err = status.Error(code(err), oneLine(err))
	}
	p.log.Warn("request failed", "method", info.FullMethod, "err", err)
	return nil, err
}

// code returns the code of an error.
func code(err error) codes.Code {
	var reported *exit.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, errNoMounter):
		return codes.Unavailable
	case !errors.As(err, &reported):
		return codes.Internal
	}
	switch reported.Code {
	case exit.Usage:
		return codes.InvalidArgument
	case exit.Source, exit.Tier, exit.Fuse, exit.Peers:
		return codes.FailedPrecondition
	}
	return codes.Internal
}

// oneLine returns the text of an error and its remedy on one line, as events of Kubernetes show it.
func oneLine(err error) string {
	var b strings.Builder
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case b.Len() > 0 && !strings.ContainsAny(b.String()[b.Len()-1:], ".?!:"):
			b.WriteString(". ")
		case b.Len() > 0:
			b.WriteString(" ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// locks has a lock for each of any number of names.
type locks struct {
	mu   sync.Mutex // guards the following
	held map[string]*heldLock
}

type heldLock struct {
	token chan struct{} // has a token while nobody holds the lock
	users int
}

// lock locks a name, and returns the function that unlocks it. If ctx is done before, lock returns an
// error.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	h := l.held[name]
	if h == nil {
		if l.held == nil {
			l.held = make(map[string]*heldLock)
		}
		h = &heldLock{token: make(chan struct{}, 1)}
		h.token <- struct{}{}
		l.held[name] = h
	}
	h.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(l.held, name)
		}
	}
	select {
	case <-h.token:
		return func() { h.token <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

const mounterLong = `Mounter serves the mounts of milkweed-k8s csi. It needs no privilege: the plugin
mounts /dev/fuse, and passes the descriptor over the socket. The mounter runs
milkweed mount --fuse-fd as a child process. Volumes with the same attributes
and secrets share one such daemon.

The mounter runs as the user of --mounter-uid of the plugin, who must be able to
read the source directories. Only root and that user may use the socket.

A volume without tiers in its configuration has the tiers of --tier. Each
dataset has a folder of its own in a tier. The quota is that of one dataset, so
the quotas of the datasets that are used at the same time add up.

A volume may name any bucket as its source. It may name a directory only below
one of --source-dir, after symbolic links are resolved.

SIGTERM ends all daemons. Their mounts then fail with ENOTCONN, until another
mounter has started, and the plugin mounts the volumes again.`

const mounterExample = `  milkweed-k8s mounter --tier ram:/tier/ram:16GiB --tier ssd:/tier/ssd:200GiB
  milkweed-k8s mounter --tier ssd:/tier/ssd:80% --source-dir /lustre`

func newMounter() *cobra.Command {
	m := &mounter{}
	var socket string
	c := &cobra.Command{
		Use:     "mounter",
		Short:   "Serve mounts without privileges",
		Long:    mounterLong,
		Example: mounterExample,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			m.log, m.stderr = newLog(c.ErrOrStderr()), c.ErrOrStderr()
			return m.run(c.Context(), socket)
		},
	}
	c.Flags().StringVar(&socket, "socket", defaultSocket, "listen on this `PATH`")
	c.Flags().StringVar(&m.program, "milkweed", "/usr/bin/milkweed", "the `PATH` of milkweed")
	c.Flags().StringArrayVar(&m.tiers, "tier", nil, "a tier `NAME:PATH:QUOTA` of volumes that configure none; repeated, fastest first")
	c.Flags().StringArrayVar(&m.sourceDirs, "source-dir", nil, "volumes may have a source below `DIR`; repeated")
	return c
}

func newLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// A mounter runs the daemons of the volumes of a node.
type mounter struct {
	program    string
	tiers      []string
	sourceDirs []string
	log        *slog.Logger
	stderr     io.Writer

	mu      sync.Mutex // guards the following
	daemons map[string]*daemon
}

// run serves the socket until ctx is done, and then ends all daemons.
func (m *mounter) run(ctx context.Context, socket string) error {
	// Other processes of this user are the daemons: none may read the secrets of another volume.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	m.daemons = make(map[string]*daemon)
	l, err := listen(ctx, socket, m.log)
	if err != nil {
		return err
	}
	defer l.Close()
	m.log.Info("listening", "socket", socket)
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var serving sync.WaitGroup
	defer m.endAll() // after the last request
	defer serving.Wait()
	for {
		conn, err := l.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		serving.Go(func() {
			defer panics.Contain()
			defer conn.Close()
			m.serve(ctx, conn)
		})
	}
}

// folderTimeout bounds how long the mounter waits for the plugin to give it the folder of the socket.
const folderTimeout = time.Minute

// listen listens on the socket, which it replaces. The plugin gives the folder to this user when it
// starts, which may be later.
func listen(ctx context.Context, socket string, log *slog.Logger) (*net.UnixListener, error) {
	deadline := time.Now().Add(folderTimeout)
	for {
		l, err := replaceSocket("unixpacket", socket)
		if err == nil {
			l.SetUnlinkOnClose(false) // a connection is refused then: see mayServe
			return l, nil
		}
		if time.Now().After(deadline) {
			return nil, &exit.Error{
				Code:   exit.Failure,
				Err:    fmt.Errorf("listen on %s: %w", socket, err),
				Remedy: fmt.Sprintf("Its folder must belong to user %d: `milkweed-k8s csi --mounter-uid %d` sees to that when it starts.", os.Getuid(), os.Getuid()),
			}
		}
		log.Warn("the socket cannot be made yet", "err", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// serve serves one connection.
func (m *mounter) serve(ctx context.Context, conn *net.UnixConn) {
	uid, err := procs.PeerUser(conn)
	if err == nil && uid != 0 && uid != os.Getuid() {
		err = fmt.Errorf("user %d may not use the mounter", uid)
	}
	if err != nil {
		m.log.Warn("refused", "err", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	r, device, err := receive(conn)
	stop()
	if device != nil {
		defer device.Close()
	}
	var reply response
	if err == nil {
		// The plugin sends nothing more: a read returns when it has closed the connection.
		ctx, cancel := context.WithCancel(ctx)
		var watching sync.WaitGroup
		watching.Go(func() {
			defer panics.Contain()
			conn.Read(make([]byte, 1))
			cancel()
		})
		conn.SetReadDeadline(time.Time{})
		reply, err = m.handle(ctx, r, device)
		conn.SetReadDeadline(time.Unix(1, 0))
		watching.Wait()
		cancel()
	}
	if err != nil {
		m.log.Warn("request failed", "op", r.Op, "target", r.Target, "source", r.Volume.name(), "err", err)
		reply = response{Failure: fail(err)}
	}
	data, err := json.Marshal(reply)
	if err == nil {
		_, err = conn.Write(data)
	}
	if err != nil && !errors.Is(err, unix.EPIPE) { // the plugin may stop waiting
		m.log.Warn("reply", "err", err)
	}
}

// handle handles a request. The caller closes device.
func (m *mounter) handle(ctx context.Context, r request, device *os.File) (response, error) {
	switch r.Op {
	case opFind:
		device, err := m.find(ctx, r.Key)
		return response{Device: device}, err
	case opMount:
		return response{}, m.mount(ctx, r, device)
	case opEnd:
		return response{}, m.end(ctx, r)
	case opWatch:
		m.watch(ctx, r.Device)
		return response{}, nil
	}
	return response{}, fmt.Errorf("unknown request %q", r.Op)
}

// find returns the device number of the file system of a volume, or 0. It waits for the end of a daemon
// that was killed, or whose file system has ended.
func (m *mounter) find(ctx context.Context, key string) (uint64, error) {
	m.mu.Lock()
	d := m.daemons[key]
	if d == nil || !d.ready.Load() {
		m.mu.Unlock()
		return 0, nil
	}
	device := d.device
	m.mu.Unlock()
	if device == 0 || !d.isReady() {
		return 0, m.awaitEnd(ctx, d)
	}
	return device, nil
}

// watch returns when no daemon can serve a file system any more, or ctx is done.
func (m *mounter) watch(ctx context.Context, device uint64) {
	if d := m.of(device, ""); d != nil {
		select {
		case <-d.lost:
		case <-ctx.Done():
		}
	}
}

// mount starts the daemon of a volume, and waits until it serves.
func (m *mounter) mount(ctx context.Context, r request, device *os.File) error {
	if err := m.checkSource(r.Volume.Source); err != nil {
		return err
	}
	words, err := m.words(r)
	if err != nil {
		return err
	}
	d, err := m.add(r)
	if err != nil {
		return err
	}
	err = d.start(m.program, words, r.Volume, device, m.stderr, func() { m.remove(d) })
	if err != nil {
		m.remove(d)
		return err
	}
	device.Close() // only the daemon has it now: the mount ends with the daemon
	if err := d.awaitReady(ctx); err != nil {
		d.stop(context.Background())
		return m.explain(err, r)
	}
	m.log.Info("serving", "source", r.Volume.name(), "target", r.Target, "pid", d.pid())
	return nil
}

// add adds the daemon of a request. There is one for each key.
func (m *mounter) add(r request) (*daemon, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.daemons[r.Key] != nil {
		return nil, errors.New("the volume has a daemon already")
	}
	for _, d := range m.daemons {
		if d.device == r.Device { // its file system has ended: the kernel has used the number again
			d.device = 0
		}
	}
	d := newDaemon(r, m.log.With("target", r.Target))
	m.daemons[r.Key] = d
	return d, nil
}

func (m *mounter) remove(d *daemon) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.daemons[d.key] == d {
		delete(m.daemons, d.key)
	}
}

// explain returns err, the error of a daemon. If another daemon uses the same tiers for the same source,
// it says how pods can share that one. If a bucket refuses a volume without a secret, it says where to name one.
func (m *mounter) explain(err error, r request) error {
	e, ok := errors.AsType[*exit.Error](err)
	if !ok {
		return err
	}
	if e.Code == exit.Source && errors.Is(err, fs.ErrPermission) && strings.Contains(r.Volume.Source, "://") && len(r.Volume.Secrets) == 0 {
		return &exit.Error{Code: e.Code, Err: e.Err, Remedy: e.Remedy + " The volume has no secret with credentials: nodePublishSecretRef names one."}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, d := range m.daemons {
		if e.Code == exit.Tier && key != r.Key && d.source == r.Volume.Source {
			return &exit.Error{Code: e.Code, Err: e.Err, Remedy: "Another volume on this node has the same source with other options, configuration or secrets. Make them the same, or configure other tiers."}
		}
	}
	return err
}

// words returns the arguments of milkweed for a request.
func (m *mounter) words(r request) ([]string, error) {
	words := []string{"mount", "--foreground", "--fuse-fd", fmt.Sprint(fuseFD),
		"--options", strings.Join(append([]string{"allow_other", "default_permissions"}, r.Volume.Options...), ",")}
	tiers := m.tiers
	if r.Volume.Configuration != "" {
		words = append(words, "--config", fmt.Sprintf("/proc/self/fd/%d", configFD))
		hasTiers, err := configuresTiers(r.Volume.Configuration)
		if err != nil {
			return nil, err
		}
		if hasTiers {
			tiers = nil
		}
	}
	for _, t := range tiers {
		words = append(words, "--tier", t)
	}
	return append(words, "--", r.Volume.Source, r.Target), nil
}

// configuresTiers reports whether a configuration has tiers.
func configuresTiers(text string) (bool, error) {
	var c struct{ Tier any }
	if _, err := toml.Decode(text, &c); err != nil {
		return false, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("attribute %q: %w", configurationKey, err), Remedy: "It is a TOML text such as tiering.toml."}
	}
	return c.Tier != nil, nil
}

// checkSource returns an error if a volume may not have a source.
func (m *mounter) checkSource(source string) error {
	if strings.Contains(source, "://") {
		return nil // milkweed knows the kinds of URLs
	}
	refused := &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("source %s: volumes may not use this directory", source),
		Remedy: "The mounter serves buckets and directories below its --source-dir: " + strings.Join(m.sourceDirs, ", ") + ".",
	}
	if len(m.sourceDirs) == 0 {
		refused.Remedy = "The mounter serves only buckets. Start it with --source-dir to serve directories."
	}
	if !filepath.IsAbs(source) {
		return refused
	}
	real, err := filepath.EvalSymlinks(source)
	if err != nil {
		if !m.isBelow(filepath.Clean(source)) {
			return refused
		}
		return &exit.Error{Code: exit.Source, Err: fmt.Errorf("source: %w", err), Remedy: "The path is that in the container of the mounter."}
	}
	if !m.isBelow(real) {
		return refused
	}
	return nil
}

// isBelow reports whether a path is in a directory of --source-dir.
func (m *mounter) isBelow(path string) bool {
	for _, dir := range m.sourceDirs {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			real = dir
		}
		if paths.Within(path, real) || paths.Within(path, filepath.Clean(dir)) {
			return true
		}
	}
	return false
}

// unmountTime is how long a daemon may serve a mount that is unmounted on this node, for a copy of it
// in another mount namespace.
const unmountTime = 10 * time.Second

// end returns when the daemon of a file system that was unmounted has ended.
func (m *mounter) end(ctx context.Context, r request) error {
	if d := m.of(r.Device, r.Key); d != nil {
		return m.awaitEnd(ctx, d)
	}
	return nil
}

// of returns the daemon that serves, or has served, a file system, or nil. key is that of the volume, or ""
// if it is not known.
func (m *mounter) of(device uint64, key string) *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.daemons {
		if d.isReady() && (d.device == device && (key == "" || d.key == key) || d.device == 0 && d.key == key) {
			return d
		}
	}
	return nil
}

// awaitEnd returns when a daemon has ended whose file system was unmounted.
func (m *mounter) awaitEnd(ctx context.Context, daemon *daemon) error {
	select {
	case <-daemon.ended:
	case <-time.After(unmountTime):
		m.log.Warn("a mount is in use in another mount namespace, and ends", "pid", daemon.pid())
		daemon.stop(ctx)
	case <-ctx.Done():
	}
	return ctx.Err()
}

// endAll ends all daemons.
func (m *mounter) endAll() {
	m.mu.Lock()
	var all []*daemon
	for _, d := range m.daemons {
		all = append(all, d)
	}
	m.mu.Unlock()
	var ending sync.WaitGroup
	for _, d := range all {
		ending.Go(func() { defer panics.Contain(); d.stop(context.Background()) })
	}
	ending.Wait()
}

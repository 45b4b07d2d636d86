package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// A node is one node of the job.
type node interface {
	base() *host
	start()
	stop() // ends what start has begun

	// read reads a file as a process of the job does.
	read(ctx context.Context, name string) error

	// serve reads a part of a file for another node. It moves no bytes.
	serve(ctx context.Context, name string, info drivers.Info, rank int, p []byte, off int64) error
}

// A whole is a node of the real code: container, tiers, handler.
type whole struct {
	*host
	peers   *peers
	levels  *tiers.Hierarchy
	names   *metadata.Container
	handler *placement.Handler
	buffers sync.Pool // of *[]byte, for readers and requests

	ctx     context.Context // of the goroutines in running
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// newWhole makes a node with a tier of a quota. Its settings are those of a mount in memory, but
// for the number of workers.
func newWhole(h *host, p *peers, from drivers.Driver, quota int64) (*whole, error) {
	log := slog.New(slog.DiscardHandler)
	n := &whole{host: h, peers: p}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.buffers.New = func() any { b := make([]byte, readSize); return &b }
	var opts tiers.Options
	if p.roster.Len() > 1 {
		opts.Peers = p
	}
	var err error
	n.levels, err = tiers.New(from, []tiers.Config{{Name: "ram", Store: &store{}, Quota: tiers.Quota{Bytes: quota}}}, opts, log)
	if err != nil {
		return nil, err
	}
	if n.names, err = metadata.New(n.ctx, n.levels, metadata.Options{TTL: time.Hour}, log); err != nil {
		return nil, err
	}
	n.handler = placement.New(n.levels, n.names, placement.Config{Workers: workers, IdleHandles: 512}, log)
	return n, nil
}

// workers is the number of background workers of a node. The default of a mount is 64; what one
// handler needs of memory for that would not allow as many nodes here.
const workers = 8

// readSize is the size of the reads of a process: what the kernel requests at once.
const readSize = 128 << 10

func (n *whole) base() *host { return n.host }

func (n *whole) start() {
	n.running.Go(func() { n.levels.Run(n.ctx) })
	n.running.Go(func() { n.handler.Run(n.ctx) })
	n.levels.WaitScanned(n.ctx)
}

func (n *whole) stop() {
	n.cancel()
	n.running.Wait()
	n.peers.pings.Wait()
	n.names.Close()
}

func (n *whole) read(ctx context.Context, name string) error {
	e, err := n.names.Resolve(ctx, name)
	if err != nil {
		return err
	}
	obj, err := n.handler.Open(ctx, e)
	if err != nil {
		return err
	}
	defer obj.Close()
	for off := int64(0); off < e.Size(); off += readSize {
		if err := n.readAt(ctx, obj, off, min(readSize, e.Size()-off)); err != nil {
			return err
		}
	}
	return nil
}

// readAt reads and repeats a read that is to be repeated, each time with a new buffer.
func (n *whole) readAt(ctx context.Context, obj drivers.Object, off, size int64) error {
	for {
		buf := n.buffers.Get().(*[]byte)
		_, err := obj.ReadAt(ctx, (*buf)[:size], off)
		if !errors.Is(err, drivers.ErrAbandoned) {
			n.buffers.Put(buf)
		}
		if !errors.Is(err, drivers.ErrRetry) || ctx.Err() != nil {
			if err == io.EOF {
				err = nil
			}
			return err
		}
	}
}

func (n *whole) serve(ctx context.Context, name string, info drivers.Info, rank int, p []byte, off int64) error {
	obj, err := n.handler.OpenShared(ctx, name, info, rank)
	if err != nil {
		return err
	}
	defer obj.Close()
	for len(p) > 0 {
		size := min(int64(len(p)), readSize)
		if err := n.readAt(ctx, obj, off, size); err != nil {
			return err
		}
		p, off = p[size:], off+size
	}
	return nil
}

// A model is a node without the real code. It reads what it owns from the source when it is first
// requested, keeps it, and copies nothing ahead of the job.
type model struct {
	*host
	peers *peers
	from  *source

	mu    sync.Mutex               // guards the following
	fills map[string]chan struct{} // closed when the file is here
}

func newModel(h *host, p *peers, from *source) *model {
	return &model{host: h, peers: p, from: from, fills: make(map[string]chan struct{})}
}

func (n *model) base() *host { return n.host }

func (n *model) start() {}

func (n *model) stop() { n.peers.pings.Wait() }

func (n *model) read(ctx context.Context, name string) error {
	info, err := n.from.Stat(ctx, name)
	if err != nil {
		return err
	}
	rank := n.peers.Rank(name)
	if rank == 0 {
		return n.fill(name, info.Size)
	}
	obj, err := n.peers.OpenVersion(ctx, name, info, func(ctx context.Context) (drivers.Object, error) {
		if rank > 0 {
			return stored{info}, n.fill(name, info.Size)
		}
		return n.from.Open(ctx, name)
	})
	if err != nil {
		return err
	}
	defer obj.Close()
	_, err = obj.ReadAt(ctx, make([]byte, info.Size), 0)
	return err
}

// fill waits until the file is here, and reads it from the source if it is the first to need it.
func (n *model) fill(name string, size int64) error {
	n.mu.Lock()
	ready := n.fills[name]
	first := ready == nil
	if first {
		ready = make(chan struct{})
		n.fills[name] = ready
	}
	n.mu.Unlock()
	if first {
		time.Sleep(n.from.latency) // the open
		n.from.fetch(size)
		close(ready)
	}
	<-ready
	return nil
}

func (n *model) serve(_ context.Context, name string, info drivers.Info, rank int, _ []byte, _ int64) error {
	if rank != n.peers.Rank(name) {
		return fmt.Errorf("%s: rank %d", name, rank)
	}
	return n.fill(name, info.Size)
}

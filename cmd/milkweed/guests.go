package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
)

// A guestSocket is the control socket for users other than the owner of a mount with allow_other. The
// zero value is none.
type guestSocket struct {
	listener *control.PublicListener
	tokens   *control.Tokens
}

// openGuestSocket makes the socket for guests. A mount without one can be used.
func (d *daemon) openGuestSocket(ctx context.Context, l *control.Listener) {
	if !d.cfg.Mount.AllowOther || d.adopts() {
		return
	}
	public, err := l.ListenPublic(ctx)
	if err != nil {
		d.log.Warn("other users cannot use status, where and plan", "err", err)
		return
	}
	d.guests = guestSocket{public, control.NewTokens()}
}

// attributes returns what guests find at the root of the mount.
func (s guestSocket) attributes() fs.Guests {
	if s.listener == nil {
		return nil
	}
	path := s.listener.Addr().String()
	return func(uid uint32) (socket, token string) {
		if control.IsOwner(int(uid)) {
			return "", ""
		}
		return path, s.tokens.Of(int(uid), time.Now())
	}
}

// close removes the socket.
func (s guestSocket) close() {
	if s.listener != nil {
		s.listener.Close() // after serveGuests has ended, it is closed
	}
}

// serveGuests serves the socket for guests until stop is called, and drops the plans of users who have
// left. The caller calls stop once or more.
func (d *daemon) serveGuests(ctx context.Context) (stop func()) {
	if d.guests.listener == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	server := &control.PublicServer{Tokens: d.guests.tokens, Guest: d.admit}
	var serving sync.WaitGroup
	serving.Go(func() {
		defer panics.Contain()
		if err := server.Serve(ctx, d.guests.listener); err != nil {
			d.log.Error("control socket for other users", "err", err)
		}
	})
	d.start(d.endGuests)
	return sync.OnceFunc(func() {
		cancel()
		waitAtMost(&serving, endTime)
	})
}

// guestInterval is how often the processes of guests are counted.
const guestInterval = 5 * time.Second

// endGuests drops the plan of each guest as whom no process runs.
func (d *daemon) endGuests(ctx context.Context) {
	tick := time.NewTicker(guestInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		guests := d.handler.Guests()
		if len(guests) == 0 {
			continue
		}
		running := procs.RunningUsers()
		for _, uid := range guests {
			if !running[int(uid)] {
				d.handler.DropGuest(uid)
			}
		}
	}
}

// errUnmapped is the error for a user whom the user namespace of the daemon does not have.
var errUnmapped = errors.New("the daemon is in a user namespace that does not have this user and its groups")

// admit returns what answers a guest. The token of the request has shown that the kernel lets the user
// read the root; the mode of the root may have changed since.
func (d *daemon) admit(ctx context.Context, u procs.User) (control.Guest, error) {
	g := guest{d, metadata.User{UID: uint32(u.UID), Groups: u.Groups}}
	switch {
	case d.draining.Load():
		return nil, errDraining
	case !u.IsMapped():
		return nil, &exit.Error{Code: exit.NotMounted, Err: errUnmapped}
	}
	_, err := g.resolve(ctx, ".")
	if errors.Is(err, syscall.EACCES) {
		err = &exit.Error{Code: exit.NotMounted, Err: fmt.Errorf("the daemon of another user (%d) serves those who may enter the mount: %w", os.Geteuid(), syscall.EACCES)}
	}
	return g, err
}

// A guest is a user of the mount who is neither root nor its owner.
type guest struct {
	d    *daemon
	user metadata.User
}

var _ control.Guest = guest{}

// resolve returns the entry of a name that the guest may read.
func (g guest) resolve(ctx context.Context, name string) (*metadata.Entry, error) {
	bounded, cancel := context.WithTimeout(ctx, whereTimeout)
	defer cancel()
	e, err := g.d.names.ResolveAs(bounded, g.user, g.d.names.Inside(name))
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return nil, noResponse(name, whereTimeout)
	}
	return e, err
}

// Status implements control.Guest. It names no file, no process and no plan of other users.
func (g guest) Status(ctx context.Context) control.Status {
	s := g.d.Status(ctx)
	s.Plan, _ = g.d.handler.GuestPlan(g.user.UID)
	s.Elsewhere = nil
	s.Tiers = slices.Clone(s.Tiers)
	for i := range s.Tiers {
		s.Tiers[i].Reason = "" // it may be an error with the name of a file
	}
	if s.Scrub.Last != nil {
		last := *s.Scrub.Last
		last.Path, last.Skipped, last.Errors = "", nil, nil
		s.Scrub.Last = &last
	}
	return s
}

// Where implements control.Guest.
func (g guest) Where(ctx context.Context, name string) (control.Location, error) {
	e, err := g.resolve(ctx, name)
	if err != nil {
		return control.Location{}, err
	}
	return g.d.locate(name, e), nil
}

// Plan implements control.Guest.
func (g guest) Plan(part placement.PlanPart, given []string) (placement.PlanResult, error) {
	return g.d.plan(given, func(names []string) (placement.PlanResult, error) {
		return g.d.handler.PlanFor(g.user, part, names)
	})
}

// Plans implements control.Guest.
func (g guest) Plans() (p control.Plan) {
	p.PlanStats, p.Streams = g.d.handler.GuestPlan(g.user.UID)
	return p
}

// DropPlan implements control.Guest.
func (g guest) DropPlan(stream string) { g.d.handler.DropGuest(g.user.UID, stream) }

// DropPlans implements control.Guest.
func (g guest) DropPlans() { g.d.handler.DropGuest(g.user.UID) }

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/placement"
)

// Limits of the server.
const (
	maxRequest   = 16 << 20               // bytes in the body of a request
	maxHeader    = 64 << 10               // bytes in the header; a path has at most 4 KiB
	writeTimeout = 30 * time.Second       // for a response, and for each line of a stream
	reportEvery  = 200 * time.Millisecond // between the events of a stream
	drainTimeout = 5 * time.Second        // for requests in flight when the daemon ends
)

// A Server serves the control interface of a Daemon.
type Server struct {
	Daemon  Daemon
	Guest   func(procs.User) (Guest, error) // returns what answers a user who may read the mount; nil: no other user may use the socket
	Metrics http.Handler                    // for /metrics; may be nil
	Log     *slog.Logger                    // for errors of connections; may be nil

	start start
}

// Serve serves on l until ctx is done. The contexts of the requests in flight are then done
// too, and Serve returns nil when these requests have ended. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	log := s.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return ServeHTTP(ctx, l, s.handler(), log)
}

// ServeHTTP serves h on l, in the manner of Server.Serve.
func ServeHTTP(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withPeer,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- panics.Do(func() error { return srv.Serve(l) }) }()
	select {
	case err := <-ended:
		return err // of the listener
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	err := srv.Shutdown(drain)
	<-ended
	return err
}

func (s *Server) handler() http.Handler {
	mux, all := http.NewServeMux(), view{s.Daemon}
	mux.HandleFunc("GET /v1/ready", func(http.ResponseWriter, *http.Request) {}) // see whenStarted
	mux.HandleFunc("GET /v1/status", all.status)
	mux.HandleFunc("GET /v1/config", s.config)
	mux.HandleFunc("POST /v1/reload", s.reload)
	mux.HandleFunc("GET /v1/where", all.where)
	mux.HandleFunc("GET /v1/trace", s.trace)
	mux.HandleFunc("POST /v1/estimate", s.warmup(s.Daemon.Estimate))
	mux.HandleFunc("POST /v1/warmup", s.warmup(s.Daemon.Warmup))
	mux.HandleFunc("POST /v1/refresh", s.refresh)
	mux.HandleFunc("POST /v1/evict", s.evict)
	mux.HandleFunc("POST /v1/scrub", s.scrub)
	mux.HandleFunc("GET /v1/generations", s.getGenerations)
	mux.HandleFunc("POST /v1/generations/switch", s.switchGeneration)
	mux.HandleFunc("POST /v1/generations/prepare", s.prepareGeneration)
	mux.HandleFunc("POST /v1/generations/drop", s.dropGeneration)
	mux.HandleFunc("GET /v1/peers", s.peers)
	mux.HandleFunc("GET /v1/plan", all.getPlan)
	mux.HandleFunc("DELETE /v1/plan", all.dropPlan)
	mux.HandleFunc("POST /v1/exchange/epoch", s.beginEpoch)
	mux.HandleFunc("GET /v1/exchange", s.getExchange)
	mux.HandleFunc("DELETE /v1/exchange", s.stopExchange)
	mux.HandleFunc("POST /v1/shutdown", s.shutdown)
	if s.Metrics != nil {
		mux.Handle("GET /metrics", s.Metrics)
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // on this socket only, which other users cannot use
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	limited := http.NewServeMux()
	limited.HandleFunc("POST /v1/plan", all.addPlan) // these have limits of their own
	limited.HandleFunc("POST /v1/exchange", s.startExchange)
	limited.Handle("/", http.MaxBytesHandler(mux, maxRequest))
	return s.admit(s.whenStarted(limited))
}

// A view serves the requests that guests may make, too.
type view struct{ Guest }

func (v view) status(w http.ResponseWriter, r *http.Request) {
	respond(w, v.Status(r.Context()))
}

func (s *Server) config(w http.ResponseWriter, r *http.Request) {
	respond(w, s.Daemon.Settings())
}

func (v view) where(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("path")
	if !drivers.ValidName(name) {
		respondError(w, badName(name))
		return
	}
	loc, err := v.Where(r.Context(), name)
	if err != nil {
		respondError(w, err)
		return
	}
	respond(w, loc)
}

// warmup returns a handler that calls run with the names of a request.
func (s *Server) warmup(run func(ctx context.Context, names []string, progress func(Progress)) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req NamesRequest
		names, ok := decodeNames(w, r, &req, &req)
		if !ok {
			return
		}
		stream(w, r, Progress{Scanning: true}, func(ctx context.Context, progress func(Progress)) error {
			return run(ctx, names, progress)
		})
	}
}

func (s *Server) refresh(w http.ResponseWriter, r *http.Request) {
	var req RefreshRequest
	names, ok := decodeNames(w, r, &req, &req.NamesRequest)
	if !ok {
		return
	}
	stream(w, r, Refreshed{}, func(ctx context.Context, progress func(Refreshed)) error {
		var last Refreshed
		err := s.Daemon.Refresh(ctx, names, req.RefreshOptions, func(p Refreshed) {
			last = p
			p.Changes = nil // the last event has all of them
			progress(p)
		})
		progress(last)
		return err
	})
}

func (s *Server) evict(w http.ResponseWriter, r *http.Request) {
	var req NamesRequest
	names, ok := decodeNames(w, r, &req, &req)
	if !ok {
		return
	}
	stream(w, r, placement.DropReport{}, func(ctx context.Context, progress func(placement.DropReport)) error {
		return s.Daemon.Evict(ctx, names, progress)
	})
}

// decodeNames decodes a request, and returns the names of req, which is a part of into. If
// one is not valid, it responds with an error and reports false.
func decodeNames(w http.ResponseWriter, r *http.Request, into any, req *NamesRequest) (names []string, ok bool) {
	if !decode(w, r, into) {
		return nil, false
	}
	for _, name := range req.Names {
		if !drivers.ValidName(string(name)) {
			respondError(w, badName(string(name)))
			return nil, false
		}
		names = append(names, string(name))
	}
	return names, true
}

// stream calls run and sends its events, the first with the progress first. A client that does
// not read does not delay run: intermediate events are dropped, and the last one is not.
func stream[P any](w http.ResponseWriter, r *http.Request, first P, run func(ctx context.Context, progress func(P)) error) {
	w.Header().Set("Content-Type", "application/jsonl")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var latest atomic.Pointer[P]
	latest.Store(&first)
	ended := make(chan error, 1)
	go func() {
		ended <- panics.Do(func() error { return run(ctx, func(p P) { latest.Store(&p) }) })
	}()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if send(w, Event[P]{Progress: *latest.Load()}) != nil {
				cancel() // the client has disconnected
			}
		case err := <-ended:
			last := Event[P]{Progress: *latest.Load(), End: true}
			if err != nil {
				f := Fail(err)
				last.Failure = &f
			}
			send(w, last)
			return
		}
	}
}

// send writes one line and flushes it.
func send(w http.ResponseWriter, event any) error {
	rc := http.NewResponseController(w)
	if err := rc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(event); err != nil {
		return err
	}
	return rc.Flush()
}

func (s *Server) shutdown(w http.ResponseWriter, r *http.Request) {
	s.Daemon.Shutdown(r.URL.Query().Get("abort") == "true")
	w.WriteHeader(http.StatusAccepted)
}

func badName(name string) error {
	return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%q is not the name of a file in the mount", name)}
}

// respond writes v. It ignores errors: after one, the client has disconnected.
func respond(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// respondError writes err as a Failure.
func respondError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, placement.ErrNoExchange):
		status = http.StatusNotFound
	case errors.Is(err, fs.ErrPermission):
		status = http.StatusForbidden
	case errors.Is(err, ErrStarting):
		status = http.StatusServiceUnavailable
	case exit.Of(err) == exit.Usage:
		status = http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(Fail(err))
}

// Package metrics exports the status of a daemon to Prometheus. It counts nothing: each scrape
// converts a new control.Status to metrics, so that `milkweed status` and a dashboard show the
// same numbers.
package metrics

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// Handler responds to scrapes with the metrics of status, of the process and of the Go runtime.
func Handler(status func(context.Context) control.Status) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(
		New(status),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Listen listens on an address, which is the value of metrics.listen.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", address)
}

// Serve serves h on l, at /metrics, and page at other paths, until ctx is done, and then returns nil.
// It closes l.
func Serve(ctx context.Context, l net.Listener, h, page http.Handler, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	mux.Handle("/", page)
	return control.ServeHTTP(ctx, l, mux, log)
}

"""What `fsdpkit plan` is asked about: the job as `submit` reads it, and the GPU it would run on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpkit.errors import ConfigError, FsdpkitError, UsageError

if TYPE_CHECKING:
    from fsdpkit.config.job import Resources
    from fsdpkit.config.job_loading import LoadedJob
    from fsdpkit.config.placement import Placement
    from fsdpkit.config.profile import SiteProfile
    from fsdpkit.config.site import LoadedSite
    from fsdpkit.config.training import TrainingSettings
    from fsdpkit.config.trust import Consent
    from fsdpkit.planning.asked import AskedStep
    from fsdpkit.planning.cards import Card
    from fsdpkit.scheduling.submission import SubmitRequest
    from fsdpkit.scheduling.wanted import Wanted


@dataclass(frozen=True)
class PlanPlace:
    """Where the job would run, as far as that is known."""

    job: LoadedJob
    site: LoadedSite | None
    profile: SiteProfile
    placement: Placement


@dataclass(frozen=True)
class PlanQuestion:
    """As it was typed. model: in place of the job's T5. args: of the script that `model` names."""

    job: str | None
    cluster: str | None
    model: str | None
    gpu: str | None
    wanted: Wanted
    args: tuple[str, ...]
    compiled: bool
    agreed: Consent

    def _job(self, extra: Sequence[str] = ()) -> LoadedJob:
        from fsdpkit.config.job_loading import load_job

        sets = (*self.wanted.sets, *extra)
        return load_job(self.job, options=self.wanted.options, sets=sets, args=self.args)

    def step(self, extra: Sequence[str] = ()) -> AskedStep:
        """What is planned, with these `KEY=VALUE` on top. Raises FsdpkitError."""
        from fsdpkit.config.training import problems
        from fsdpkit.planning.asked import AskedStep

        job = self._job(extra)
        resources = job.spec.resources
        card = self._card(resources)
        settings = self._settings(job)
        if wrong := problems(settings, resources.ranks, resources.gpus):
            raise ConfigError("\n".join(wrong))
        model = None if self.model is None else self.agreed.to_model(self.model)
        # A function has a batch of its own, unless another is asked for.
        own = model is not None and model.script is not None
        said = {each.partition("=")[0].strip() for each in (*self.wanted.sets, *extra) if own}
        return AskedStep(
            settings,
            resources.nodes,
            resources.gpus,
            card,
            self.agreed.to_script(job.entry.path),
            model,
            settings.batch_size if "training.batch_size" in said else None,
            settings.data.source_length if "training.data.source_length" in said else None,
            args=tuple(job.spec.args),
            compiled=self.compiled,
        )

    def _card(self, resources: Resources) -> Card:
        import msgspec

        from fsdpkit.config.placement import place_to_plan
        from fsdpkit.config.site import choose_site
        from fsdpkit.planning.cards import card_named, card_of

        if self.gpu is not None:
            return card_named(self.gpu)
        site, _ = choose_site(self.cluster)
        place = place_to_plan(resources, site)
        card = card_of(place.node_type, f"site {site.id}")
        return msgspec.structs.replace(card, job_memory_mb=place.memory_mb)

    def _settings(self, job: LoadedJob) -> TrainingSettings:
        from fsdpkit.config.trainers import OWN
        from fsdpkit.config.training import TrainingSettings
        from fsdpkit.scheduling.job_checks import training_of

        settings: TrainingSettings | None = training_of(job, Path.cwd())
        if settings is not None and job.spec.trainer_name == OWN:
            return settings
        if self.model is None:
            raise ConfigError(
                f"job {job.spec.name} has no [training] for the T5 trainer: name a function "
                "that gives the model and a batch, by --model FILE.py:FUNCTION"
            )
        return TrainingSettings()

    def args_alone(self) -> list[str] | None:
        """What a script that does not read [training] is told; None for one that reads it, whose
        plan goes by its settings, which those of `--model` need not be. What is set of [training]
        for this question, such as how many steps it makes, is not the script's."""
        import msgspec

        from fsdpkit.config.job_loading import load_job

        sets = [each for each in self.wanted.sets if not each.strip().startswith("training.")]
        spec = load_job(self.job, options=self.wanted.options, sets=sets, args=self.args).spec
        return list(spec.args) if spec.training is msgspec.UNSET else None

    def places(self, nodes: Sequence[int]) -> tuple[Sequence[int], dict[int, str]]:
        """The numbers of nodes that the site has a place for, and why not the others; all of them
        where a GPU was named and no site. Raises UsageError if it has none for any."""
        from fsdpkit.config.site import choose_site

        if self.gpu is not None and self.cluster is None:
            return nodes, {}
        resources = self._job().spec.resources
        site, _ = choose_site(self.cluster)
        fitting, refused = places_of(resources, site, nodes or (resources.nodes,))
        if not fitting:
            raise UsageError("--tune: " + next(iter(refused.values())))
        return fitting, refused

    def place(self) -> PlanPlace:
        """The site's place for the job; where a GPU was named and no site, one without facts.
        Raises FsdpkitError."""
        from fsdpkit.config.partition import NodeType, Partition
        from fsdpkit.config.placement import Placement, place_to_plan
        from fsdpkit.config.profile import SiteProfile
        from fsdpkit.config.site import choose_site
        from fsdpkit.scheduling.live_placement import completed

        job = self._job()
        resources = job.spec.resources
        if self.gpu is not None and self.cluster is None:
            memory_mb, no_facts = resources.memory_mb, Partition()
            gpus, node = resources.gpus, NodeType()
            placed = Placement(None, {}, node, gpus, "", memory_mb, "", "", no_facts, ())
            profile = SiteProfile(schema="fsdpkit.site/1", title="a cluster")
            return PlanPlace(job, None, profile, placed)
        site, _ = choose_site(self.cluster)
        placed = completed(place_to_plan(resources, site), resources, site.profile)
        return PlanPlace(job, site, site.profile, placed)

    def balance(self, place: PlanPlace) -> str | None:
        """What the centre's command says of the job's account; None where it is not here, no
        account, or this is another machine. Raises ConfigError for a stranger's profile."""
        import shutil

        from fsdpkit.scheduling.charging import balance_of
        from fsdpkit.scheduling.slurm_answers import answers_for

        command, account = place.profile.billing.balance, place.job.spec.resources.account
        needs_account = any("{account}" in word for word in command)
        if not command or place.site is None or (account is None and needs_account):
            return None
        if answers_for(place.profile) is None or shutil.which(command[0]) is None:
            return None
        if not self.agreed.to_site(place.site):
            return None
        return balance_of(command, account or "")

    def as_request(self) -> SubmitRequest:
        """The same as a submission, whether or not the job fits its GPUs."""
        from fsdpkit.scheduling.submission import SubmitRequest

        said = asdict(self.wanted)
        return SubmitRequest(
            **said, job=self.job, cluster=self.cluster, args=self.args, by_plan=False
        )

    def site_and_network(self) -> tuple[str | None, float | None]:
        """The cluster whose runs count, and what its profile says of bandwidth between nodes; None
        where this machine is several, or the named one none."""
        from fsdpkit.config.site import choose_site

        try:
            site = choose_site(self.cluster)[0]
        except FsdpkitError:
            return None, None
        return site.id, site.profile.network.all_reduce_gb_s


def places_of(
    resources: Resources, site: LoadedSite, wanted: Iterable[int]
) -> tuple[list[int], dict[int, str]]:
    """Of the wanted numbers of nodes those that the site has a place for; why not the others."""
    from msgspec.structs import replace

    from fsdpkit.config.placement import place_to_plan

    fit: list[int] = []
    refused: dict[int, str] = {}
    for nodes in wanted:
        try:
            place_to_plan(replace(resources, nodes=nodes), site)
            fit.append(nodes)
        except UsageError as error:
            refused[nodes] = str(error)
    return fit, refused

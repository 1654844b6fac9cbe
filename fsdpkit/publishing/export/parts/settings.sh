FSDPKIT_FORM_WORDS=(--job "$FSDPKIT_FORM_RUN_DIR/job.json" ${FSDPKIT_FORM_WORDS[@]+"${FSDPKIT_FORM_WORDS[@]}"})    # the trainer's settings
